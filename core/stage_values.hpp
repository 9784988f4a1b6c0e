// Plain values that go into the passes of a stage. No Kokkos.
#pragma once
#include <cstdint>

#include "core/layout/plan.hpp"

namespace sestina {

struct PassOptions {
  int micro_batch = 1, sequence = 1;  // B, T
  bool recompute = false, deterministic = false, mask_documents = false;
  int micros = 1;          // micro-batches of a step on this rank
  bool graphs = false;     // train.graphs: passes on a device are recorded
  std::uint64_t seed = 1;  // seed of permutations drawn when weights in another form than dense are merged
};
// Returns the options of a run on one rank.
PassOptions pass_options(const PlanInput&);

// The host tokens (B, T+1) of a micro-batch of B sequences of length T: inputs are columns 0..T-1, targets 1..T. A
// target below 0 does not count (its input is read as 0). first_key (B, T) or null: see kernels/model/attention.hpp.
struct BatchView {
  const std::int32_t* tokens = nullptr;
  const std::int32_t* first_key = nullptr;
};

}  // namespace sestina
