// What goes into a step of the executor, and what comes out of it. No Kokkos.
#pragma once
#include <optional>
#include <vector>

#include "core/stage_values.hpp"
#include "parallel/plan/rank_report.hpp"

namespace sestina {

// Where the micro-batches of a rank come from.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual BatchView next() = 0;  // of this rank's share of the data, in order
};

struct StepSums {
  double loss = 0;             // sum of token losses over the global batch
  double norm = 0;             // over all gradients
  bool weights_finite = true;  // all that updates have written so far
};

// What the passes of a step came to.
struct Passes {
  bool dropped = false;               // interrupted between micro-batches: no weight has changed
  std::optional<StepSums> sums = {};  // the same on all ranks, for them to decide; none: stages updated in between
};

// How late gradients were, by stage of the whole pipeline; NaN: not known. Empty: gradients are never late.
struct StageDelays {
  std::vector<double> updates;  // between the weights of the forward pass and those that are updated
  std::vector<double> drift;    // |newest - used| / |newest| of the weights, in one of metrics.every steps
  std::vector<double> cosine;   // of the gradient with that at the newest weights, in one of metrics.tensors_every
};

// A step of which all ranks have told; the same on all of them.
struct FinishedStep {
  std::int64_t update = 0;
  StepSums sums;
  RankReport report;  // of all ranks
  StageDelays delays;
};

}  // namespace sestina
