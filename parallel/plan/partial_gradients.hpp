// Gradients of which each tensor-parallel rank has a part (core/layout/model_part.hpp), as runs that lie together in
// the gradient buffer: one sum over the ranks serves a run, gaps between its tensors included, which are zero. No
// Kokkos.
#pragma once
#include <vector>

#include "core/deck/options.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {

struct PartialRun {
  int block = 0;                         // that finishes it
  std::int64_t begin = 0, elements = 0;  // in the gradient buffer
  bool same_heads = false;               // summed over the ranks with the same key and value heads, else over the group
};

// In the order of the buffer; none without tensor parallelism.
std::vector<PartialRun> partial_runs(const StagePlan&, const GradientBuckets&, const Options&);

}  // namespace sestina
