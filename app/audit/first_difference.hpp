// Where results that an audit found to differ began: the first tensor, pass, layer, rank, micro-batch and sample, as
// passes that are computed again with digests between layers tell it. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/audit/audit_verdict.hpp"
#include "core/model/first_bad.hpp"

namespace sestina {

struct FirstDifference {
  FirstBad at;                                      // without a value
  std::vector<int> ranks;                           // those that were wrong; several: they disagree, or all were
  std::uint64_t first_sample = 0, last_sample = 0;  // equal where it is one sample
  bool comes_again = true;  // false: passes that were computed again agree, and this is what is known without them
};

// Returns the first of the digests of a replica's micro-batch on which ranks do not agree; its ranks are those of the
// group, and its micro-batch and samples are not set but for `sequence`. digests: those of one computation.
std::optional<FirstDifference> first_difference(const ReplicaResults&, std::size_t replica,
                                                const std::vector<PassDigest>& digests);
// Returns the place of the gradient of a tensor among digests.
FirstBad place_of_gradient(const std::vector<PassDigest>& digests, const std::string& tensor);

// Keeps the earlier one of both in `first`.
void keep_first(std::optional<FirstDifference>& first, const std::optional<FirstDifference>&);
// Returns the first one of those that ranks of the world found; the same on all of them, and collective over them.
std::optional<FirstDifference> first_of_ranks(Communicator& world, const std::optional<FirstDifference>&);

// Returns "first different in the forward pass: output of model.layers.2.mlp (rank 1, stage 0, micro-batch 1, sample
// 12)", after a word on the passes that were computed again.
std::string to_text(const FirstDifference&);
// Writes RUN_DIR/first_difference.json with the same facts, by the names of first_nonfinite.json. A disk that refuses
// it costs a warning.
void write_first_difference(const std::string& run_dir, std::int64_t step, const FirstDifference&,
                            const std::string& text);

}  // namespace sestina
