// The places of tensors by the plan: what a tensor-parallel rank holds of each, homes of whole matrices, the gradient
// buffer, and the layout of one rank that follows (core/layout/rank_layout.hpp). No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

#include "core/deck/options.hpp"
#include "core/layout/plan.hpp"
#include "core/layout/rank_layout.hpp"
#include "core/layout/tensor_spec.hpp"
#include "parallel/plan/plan_assign.hpp"

namespace sestina {

// The part of a tensor that a tensor-parallel rank holds, by the cut that the tensor's spec names (TensorCut).
struct TensorShard {
  enum class Cut { none, rows, cols } cut = Cut::none;
  std::int64_t begin = 0, end = 0;  // range of the cut side; none: all rows
};

TensorShard tensor_shard(const TensorSpec&, const ModelConfig&, int tp, int tp_rank);

// Returns the local tensor: name and role of the whole one, sides of the shard.
TensorSpec local_spec(const TensorSpec&, const ModelConfig&, int tp, int tp_rank);
// Does the same without the name, for plans: a model has very many tensors.
TensorSpec local_shape(const TensorSpec&, const ModelConfig&, int tp, int tp_rank);
std::vector<TensorSpec> local_shapes(const std::vector<TensorSpec>&, const ModelConfig&, int tp, int tp_rank);

// Under tensor parallelism it is decided which rank updates a whole matrix, and in what portions matrices travel.

// Homes were filled as if they were equal; this makes groups of tp of them data-parallel ranks with even bytes. Returns
// rank = dp_rank * tp + tp_rank by home.
std::vector<int> group_homes(const std::vector<std::int64_t>& bytes, int dp, int tp);

struct HomedMatrix {
  int spec = 0, home = 0;
  std::int64_t cost = 0;
  std::int64_t bytes = 0;  // bytes of the whole gradient
};

// Returns the micro-groups of one data-parallel rank, in order: matrices come by the time at which their home gets to
// them when it takes its dearest first, so that the loads inside a group are as even as the plan's. A group is full
// when the whole gradients at one home would exceed `most_bytes`; that never goes below the largest matrix, which alone
// in a group would idle all other homes. Where homes have several matrices and these are large enough to hide an
// exchange, there are a few groups however much would be allowed: the exchange of one hides under the work on another.
std::vector<MicroGroup> micro_groups(std::vector<HomedMatrix>, int tp, std::int64_t most_bytes);

// Tensors lie in the gradient buffer by buckets in backward order, and inside each by owner, so that whatever the plan,
// every rank's shard of a bucket is one interval.

// Returns the numbers of the specs for which `wanted` holds, in the order in which gradients get ready: last block
// first, inside a block as listed.
template <class Wanted>
std::vector<int> backward_order(const std::vector<TensorSpec>& specs, Wanted wanted) {
  std::vector<int> order;
  for (std::size_t end = specs.size(); end > 0;) {
    std::size_t begin = end - 1;
    while (begin > 0 && specs[begin - 1].block == specs[end - 1].block) --begin;
    for (std::size_t i = begin; i < end; ++i)
      if (wanted(i)) order.push_back(static_cast<int>(i));
    end = begin;
  }
  return order;
}

// Lays out whole matrices, owner by owner. `local`: the specs as one tensor-parallel rank holds them; `buckets`:
// numbers of specs. Tensors begin on multiples of arena_alignment, but for those that follow their neighbour of the
// same owner.
std::vector<BucketLayout> matrix_buckets(const std::vector<TensorSpec>& local, const std::vector<int>& owner,
                                         const Buckets& buckets, int dp);

// Lays out tensors of the scalar optimizer: cuts are even, moved to the nearest row.
std::vector<BucketLayout> row_buckets(const std::vector<TensorSpec>& local, const Buckets& buckets, int dp);

// The plan gives what one rank holds (core/layout/rank_layout.hpp): its shards, the rows that it owns, and the places
// of gradients.

// The place of a tensor: its bucket (matrices first, then the rest, as the buckets are numbered in a StagePlan) and its
// number in that bucket.
struct BucketPlace {
  int bucket = 0, entry = 0;
};

// All buckets of a stage, matrices first, one after the other in the gradient buffer. Where gradients take turns
// (block_turns.hpp), a bucket is one of a block and lies in its place, and what a rank owns of all of them after the
// places, bucket after bucket.
struct GradientBuckets {
  std::vector<BucketLayout> buckets;
  std::vector<std::int64_t> begin;  // first element of each, and one after the last, or after the places
  std::vector<BucketPlace> place;   // by spec
  std::vector<bool> of_experts;     // by bucket: its holders alone exchange it, and it is cut for them
  int ep = 1;                       // parallel.ep: holders are so many ranks apart (expert_layout.hpp)
  bool to_all = false;              // every rank gets all sums (parallel.reduce), and not owners alone
  std::vector<int> turn;            // by bucket, the number of its place; empty: gradients do not take turns
  bool in_turn() const { return !turn.empty(); }
  // Returns which piece of a bucket a data-parallel rank owns.
  int piece(std::size_t bucket, int dp_rank) const { return of_experts[bucket] ? dp_rank / ep : dp_rank; }
  // Return the first element of what a rank owns of a bucket, and the elements that it owns of all; gaps included.
  // Buckets of experts come after all others.
  std::int64_t sum_begin(std::size_t bucket, int dp_rank) const;
  std::int64_t sums_size(int dp_rank) const { return sum_begin(buckets.size(), dp_rank) - begin.back(); }
};
// The stage's buckets must be those of this rank (lay_out_buckets).
GradientBuckets gradient_buckets(const StagePlan&, const ParallelOptions& = {});

// Rows of a shard whose complete gradient comes to a data-parallel rank.
struct OwnedRows {
  std::int64_t begin = 0, end = 0;
};
OwnedRows owned_rows(const StagePlan&, const GradientBuckets&, int spec, const TensorSpec& local, int dp_rank);

// True for matrices that are updated in shards (core/optimizer/methods/sharded_muon.hpp). Heads by themselves, blocks
// of rotations, and matrices that every rank holds whole, are ordinary matrices on each rank.
bool is_sharded(const TensorSpec&, const PlanInput&);

// True for matrices that a tensor-parallel rank, or each, updates whole, or that are updated in shares: the rank that
// computes with them keeps no master weights. Blocks of rotations, which no shard cuts, are updated by each rank that
// holds them.
bool is_homed(const StagePlan&, int spec, const ParallelOptions&);

// Returns the matrices of a data-parallel rank that are updated whole at a tensor-parallel home, group by group in the
// order of their updates; none where nothing is homed.
std::vector<std::vector<int>> homed_groups(const StagePlan&, const PlanInput&, int dp_rank);
// True where a tensor-parallel rank is the home of a spec, or one of its homes.
bool is_home(const StagePlan&, int spec, int tp_rank);

// Returns the layout of a rank of a stage, which must have the buckets of this rank. One rank by itself keeps gradients
// in the order of the tensors.
RankLayout shard_layout(const StagePlan&, const GradientBuckets&, const PlanInput&, int dp_rank, int tp_rank);
// Does it in two parts: what data-parallel ranks with the same experts have in common, and what each of them owns.
RankLayout shards_of_rank(const StagePlan&, const PlanInput&, int dp_rank, int tp_rank);
void own_rows(RankLayout&, const StagePlan&, const GradientBuckets&, const PlanInput&, int dp_rank);

// The tensor-parallel ranks that hold the same shard of a tensor as tp_rank: the first of them, and how many
// (consecutive).
struct ShardHolders {
  int first = 0, count = 1;
};
ShardHolders shard_holders(const TensorSpec&, const ModelConfig&, int tp, int tp_rank);

}  // namespace sestina
