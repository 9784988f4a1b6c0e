// What one rank holds of each tensor of its model: its shard of it, the rows whose master weights and optimizer state
// it keeps, and where the gradient lies. Plain data; one rank by itself holds and owns all. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/layout/tensor_spec.hpp"

namespace sestina {

struct TensorHolding {
  TensorSpec whole;  // the tensor of the model
  TensorSpec local;  // the shard that is computed with here: all of it without tensor parallelism
  std::int64_t row_begin = 0, col_begin = 0;    // of the shard in the tensor
  std::int64_t owned_begin = 0, owned_end = 0;  // rows of the shard whose complete gradient this rank has, and, but for
                                                // homed ones, whose master weights and state it keeps
  bool row_sharded =
      false;  // rows are sharded over data-parallel ranks (cuts: multiples of chunk_rows), else it has one owner
  bool homed = false;    // a tensor-parallel rank of the owner's updates it whole (parallel/stage/matrix_homes.hpp)
  bool sharded = false;  // a matrix that is updated where its shards are, by the whole tensor-parallel group
                         // (core/optimizer/methods/sharded_muon.hpp)
  bool saved = true;     // false: another rank has the same values, which counts them and writes them to checkpoints
  bool counted = true;   // false: another rank of the tensor-parallel group has the same shard, and enters it into sums
  std::size_t gradient_offset = 0;  // of the shard's gradient in the gradient buffer, elements
  std::int64_t owned_rows() const { return owned_end - owned_begin; }
  std::size_t owned_elements() const { return static_cast<std::size_t>(owned_rows() * local.cols); }
};

struct RankLayout {
  std::vector<TensorHolding> tensors;  // in the order of the specs
  std::size_t gradient_elements = 0;   // of the buffer, gaps included
};

// Gradient buffers in addition to the one of the arena that a deterministic sum over so many micro-batches takes
// (accumulation_tree.hpp).
constexpr int tree_levels(int micros) {
  int levels = 0;
  while ((1 << levels) < micros) ++levels;
  return levels;
}

// One rank holds and owns everything; gradients lie as arena_layout says.
RankLayout lone_layout(const std::vector<TensorSpec>&);

}  // namespace sestina
