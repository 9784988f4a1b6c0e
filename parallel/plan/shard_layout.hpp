// From the plan to what one rank holds (core/layout/rank_layout.hpp): its shards, the rows it owns, and where gradients
// lie. No Kokkos.
#pragma once
#include "core/deck/options.hpp"
#include "core/layout/plan.hpp"
#include "core/layout/rank_layout.hpp"

namespace sestina {

// Where a tensor lies: its bucket (matrices first, then the rest, as the buckets are numbered in a StagePlan) and its
// number in it.
struct BucketPlace {
  int bucket = 0, entry = 0;
};

// All buckets of a stage, matrices first, one after the other in the gradient buffer.
struct GradientBuckets {
  std::vector<BucketLayout> buckets;
  std::vector<std::int64_t> begin;  // first element of each, and one after the last
  std::vector<BucketPlace> place;   // by spec
};
// The stage's buckets must be those of this tensor-parallel rank (lay_out_buckets).
GradientBuckets gradient_buckets(const StagePlan&);

// Rows of a shard whose complete gradient comes to a data-parallel rank.
struct OwnedRows {
  std::int64_t begin = 0, end = 0;
};
OwnedRows owned_rows(const StagePlan&, const GradientBuckets&, int spec, const TensorSpec& local, int dp_rank);

// True for matrices that are updated in shards (core/optimizer/methods/sharded_muon.hpp). Heads by themselves, and
// matrices that every rank holds whole, are ordinary matrices on each rank.
bool is_sharded(const TensorSpec&, const PlanInput&);

// True for matrices that a tensor-parallel rank, or each, updates whole.
bool is_homed(const StagePlan&, int spec, const ParallelOptions&);

RankLayout shard_layout(const StagePlan&, const GradientBuckets&, const PlanInput&, int dp_rank, int tp_rank);

// Tensor-parallel ranks that hold the same shard of a tensor as tp_rank: the first of them, and how many (consecutive).
struct ShardHolders {
  int first = 0, count = 1;
};
ShardHolders shard_holders(const TensorSpec&, const ModelConfig&, int tp, int tp_rank);

// Gradients of which each tensor-parallel rank has a part (core/layout/model_part.hpp), as runs that lie together in
// the gradient buffer: one sum over the ranks serves a run, gaps between its tensors included, which are zero.
struct PartialRun {
  int block = 0;                         // that finishes it
  std::int64_t begin = 0, elements = 0;  // in the gradient buffer
  bool same_heads = false;               // summed over the ranks with the same key and value heads, else over the group
};

// In the order of the buffer; none without tensor parallelism.
std::vector<PartialRun> partial_runs(const StagePlan&, const GradientBuckets&, const PlanInput&);

}  // namespace sestina
