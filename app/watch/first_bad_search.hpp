// Where a step that is not finite began: the first tensor, pass, layer, rank, micro-batch and sample. Everything here
// is called after a failure, on all ranks together, and may be slow. No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <tuple>

#include "core/model/first_bad.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {

// The first value of a step that is not finite, of all ranks.
struct FirstBadOfRanks {
  FirstBad bad;
  int rank = 0;
  std::optional<std::uint64_t> sample;  // none: a sum over several
};

// Runs the passes of an update again, with a look at all that they compute. run_passes does what the step did, with the
// same samples, of which first_sample is the first, and the same weights. Returns the same on all ranks; none where
// everything is finite this time.
std::optional<FirstBadOfRanks> search_passes(Executor&, Communicator& world, std::uint64_t first_sample,
                                             const std::function<void()>& run_passes);
// Returns the name and place of the first weight that is not finite, with its rank; "" where there is none.
std::string search_weights(const Executor&, Communicator& world);

// Returns "first in the forward pass: output of model.layers.2.mlp is nan (rank 0, stage 0, micro-batch 1, sample 12)".
std::string to_text(const FirstBadOfRanks&);
// The parts of this that first differences of audits share (app/audit/first_difference.hpp). A place travels between
// ranks as JSON. Stages compute one after the other, backward in the opposite order; ranks of a stage compute the same
// places.
nlohmann::json to_json(const FirstBad&);
FirstBad first_bad_from(const nlohmann::json&);
std::tuple<PassKind, int, int, int> order_of(const FirstBad&);
const char* pass_name(PassKind);  // "forward"
const char* pass_text(PassKind);  // "forward pass"
void write_place(const std::string& path, const nlohmann::json&);

// Writes RUN_DIR/first_nonfinite.json with the same facts. A disk that refuses it costs a warning.
void write_first_bad(const std::string& run_dir, std::int64_t step, const std::optional<FirstBadOfRanks>&,
                     const std::string& text);

}  // namespace sestina
