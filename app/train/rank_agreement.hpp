// The facts that the ranks of a run must have in common, compared before anything depends on them. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"
#include "io/store/digest.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// One thing that a rank says of itself. value is compared; shown, where it is not empty, is printed in its place.
struct Statement {
  std::string key, value, shown = {};
  bool given = false;  // the user said it, else it was derived; given ones are listed first
};

// Compares statements in one collective on all ranks. Where they differ, all of them fail with this code (AgreedError)
// and one message: a rank that differs from most (from the first, if there is no majority), the keys and both values.
void require_agreement(Communicator&, const std::vector<Statement>&, ExitCode);

// Returns statements on the program itself: version, commit, how it was built, what its ranks talk through.
std::vector<Statement> program_statements();
// Returns statements on a resolved deck but for what is a rank's own (is_local_to_rank). given: the deck's layers as
// this start names them.
std::vector<Statement> deck_statements(const Deck& resolved, const Deck& given);
// Returns statements on what the deck's paths lead to: sources, tokenizer, Hugging Face folder, each by size and
// digest. It throws the errors of the digests.
std::vector<Statement> data_statements(const Options&, const Poll& poll);

}  // namespace sestina
