// The sums over a tensor-parallel group in a step: those inside passes, in updates of shards, and of gradients of which
// every rank has a part. One list says what is summed; the memory in which parts of other ranks arrive (TensorGroup)
// and what the plan says is sent follow from it. No Kokkos.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/exchange/traffic.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {

// Sums of one kind. In whole, each rank ends with the result; with scattered rows, each with its rows of it.
struct TensorSum {
  const char* what = "";      // in the plan's words
  std::int64_t count = 0;     // calls in a step
  std::int64_t elements = 0;  // of all calls
  std::int64_t largest = 0;   // elements of the largest call
  std::size_t width = sizeof(float);
  bool scatters_rows = false;
  bool same_heads = false;  // over the ranks with the same key and value heads, else over the group
};

// Gradients of which each tensor-parallel rank has a part (core/layout/rank_layout.hpp), as runs that lie together in
// the gradient buffer: one sum over the ranks serves a run, gaps between its tensors included, which are zero.
struct PartialRun {
  int block = 0;                         // the block that finishes it
  std::int64_t begin = 0, elements = 0;  // in the gradient buffer
  bool same_heads = false;               // as in TensorSum
};

// Returns the runs in the order of the buffer; none without tensor parallelism.
std::vector<PartialRun> partial_runs(const StagePlan&, const GradientBuckets&, const PlanInput&);

// Return the sums in which a rank of the stage takes part, in its passes, of its gradients, and in its updates; none
// without tensor parallelism. The stage must have the buckets of this rank (lay_out_buckets). part: the rank's part of
// the model.
std::vector<TensorSum> sums_of_passes(const StagePlan&, const PlanInput&, const ModelPart& part);
std::vector<TensorSum> sums_of_gradients(const StagePlan&, const PlanInput&, const ModelPart& part);
std::vector<TensorSum> sums_of_updates(const StagePlan&, const PlanInput&, const ModelPart& part, int dp_rank);

// The bytes in which parts of other ranks arrive, for the largest sum over each of the two groups.
struct SumStaging {
  std::size_t group = 0, same_heads = 0;
  void cover(const SumStaging& other) {
    group = std::max(group, other.group);
    same_heads = std::max(same_heads, other.same_heads);
  }
};
SumStaging sum_staging(const std::vector<TensorSum>&, const ModelPart& part);
// Those of a rank's passes and gradients, the same for all data-parallel ranks that hold the same experts.
SumStaging common_staging(const StagePlan&, const PlanInput&, const ModelPart& part);

void add_sums(Traffic&, const std::vector<TensorSum>&);

}  // namespace sestina
