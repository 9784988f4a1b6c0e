// Where tensors lie in the gradient buffer: buckets in backward order, inside each by owner, so that whatever the plan,
// every rank's shard of a bucket is one interval. No Kokkos.
#pragma once
#include <vector>

#include "core/layout/plan.hpp"
#include "parallel/plan/plan_partition.hpp"

namespace sestina {

// Numbers of the specs for which `wanted` holds, as gradients get ready: last block first, inside a block as listed.
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

// Whole matrices, owner by owner. `local`: the specs as one tensor-parallel rank holds them; `buckets`: numbers of
// specs. Tensors begin on multiples of arena_alignment, but for those that follow their neighbour of the same owner.
std::vector<BucketLayout> matrix_buckets(const std::vector<TensorSpec>& local, const std::vector<int>& owner,
                                         const Buckets& buckets, int dp);

// Tensors of the scalar optimizer: even cuts, moved to the nearest row.
std::vector<BucketLayout> row_buckets(const std::vector<TensorSpec>& local, const Buckets& buckets, int dp);

}  // namespace sestina
