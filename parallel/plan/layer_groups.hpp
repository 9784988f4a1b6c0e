// The parts of an update that may begin before all gradients are there (parallel.overlap_updates): the matrices of a
// layer, once their own gradients are. No Kokkos.
#pragma once
#include <cstddef>
#include <vector>

#include "parallel/plan/shard_layout.hpp"

namespace sestina {

// True for the matrices of layers that the matrix optimizer updates. With parallel.clip_scope = "layer" those of a
// layer are clipped by their own norm, and all other tensors together by theirs.
inline bool is_updated_by_layer(const StagePlan& stage, std::size_t spec) {
  return stage.is_matrix(static_cast<int>(spec)) && stage.specs[spec].layer >= 0;
}

// Layers that are updated one after the other once the same buckets are there.
struct LayerGroup {
  int first_layer = 0, layers = 0;               // of the model
  std::size_t first_tensor = 0, end_tensor = 0;  // all specs of these layers
  std::vector<std::size_t> waits, sends;         // buckets (GradientBuckets) whose gradients they are the first to
                                                 // need, and whose weights are all new after them
};

// Returns the groups of a stage in the order of its backward pass, the same on all ranks of the stage. Buckets that
// hold a matrix of no layer as well are sent by none.
std::vector<LayerGroup> layer_groups(const StagePlan&, const GradientBuckets&);

}  // namespace sestina
