// What the ranks of a run must have in common, compared before anything depends on it. No Kokkos.
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
  bool given = false;  // the user said it; else it was derived. Those given are listed first
};

// One collective on all ranks. Where their statements differ, all of them fail with this code (AgreedError) and one
// message: a rank that differs from most (from the first, if there is no majority), the keys and both values.
void require_agreement(Communicator&, const std::vector<Statement>&, ExitCode);

// The program itself: version, commit, how it was built, what its ranks talk through.
std::vector<Statement> program_statements();
// A resolved deck but for what is a rank's own (is_local_to_rank). given: the deck's layers as this start names them.
std::vector<Statement> deck_statements(const Deck& resolved, const Deck& given);
// What the deck's paths lead to: sources, tokenizer, Hugging Face folder, each by size and digest. Errors as the
// digests.
std::vector<Statement> data_statements(const Options&, const Poll& poll);

}  // namespace sestina
