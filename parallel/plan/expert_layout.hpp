// Expert parallelism in a plan (parallel.ep): which data-parallel ranks hold an expert, and who of them updates it. Of
// the dp ranks of a group, ep in a row hold all experts together, equally many each, in order; the ranks with the same
// place among their ep ones hold the same experts. So every rank has dp / ep - 1 others with which it sums gradients of
// its experts and exchanges their weights; the plan keeps the names and numbers of all tensors, and a rank's shard of
// an expert that it does not hold has no rows. No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

#include "core/layout/plan.hpp"
#include "core/layout/rank_layout.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {

// The place of a data-parallel rank among those that hold all experts together, and how many ranks hold one expert.
inline int expert_rank(const ParallelOptions& parallel, int dp_rank) { return dp_rank % parallel.ep; }
inline int expert_holders(const ParallelOptions& parallel) { return parallel.dp / parallel.ep; }
// Returns the place of the ranks that hold a tensor; -1 where every rank holds it.
int holding_rank(const TensorSpec&, const ModelConfig&, const ParallelOptions&);
bool holds(const TensorSpec&, const PlanInput&, int dp_rank);

// Takes the rows of experts that the rank does not hold from its shards.
void drop_other_experts(std::vector<TensorSpec>& local, const PlanInput&, int dp_rank);
// Sets what the part of a data-parallel rank has of the experts.
void set_experts(ModelPart&, const ParallelOptions&, int dp_rank);

// Returns whether it is of an expert that not all ranks hold; ep: parallel.ep.
bool is_shared_out(const TensorSpec&, int ep);
// True for a bucket that is exchanged by the holders of its experts alone.
bool is_of_experts(const StagePlan&, const BucketLayout&, int ep);
// Returns the buckets of the gradient buffer that holders of experts exchange, or the others, as the ranks of that
// group number themselves; they keep their places in the buffer, and the places of tensors are those in `all`. Sums of
// what a rank owns (sum_begin) count from the first one of these buckets.
GradientBuckets buckets_of(const GradientBuckets& all, bool experts);

// Returns owners of items whose ranks have loads already: those of a good assignment to ranks without loads, whose
// shares change ranks so that the largest goes to the least loaded.
std::vector<int> owners_on_top(const std::vector<std::int64_t>& cost, std::vector<int> owner,
                               const std::vector<std::int64_t>& load);

// Matrices of a stage with their holding_rank.
struct PlacedItems {
  std::vector<std::int64_t> cost;
  std::vector<int> place;
};
// Returns owners with a smaller largest load than `owner` has, if it finds any: the longest item first to the least
// loaded rank that holds it; then single items of the most loaded rank move, or change places with smaller ones.
std::vector<int> balance_places(const PlacedItems&, std::vector<int> owner, const ParallelOptions&);

// Returns a largest load below which no assignment goes, with experts at their holders: rest and experts are the costs
// of the other matrices and of the experts of one place.
std::int64_t expert_load_bound(const std::vector<std::int64_t>& rest, const std::vector<std::int64_t>& experts,
                               const ParallelOptions&);

}  // namespace sestina
