// The element-wise passes of Adam in rotated bases for many matrices, each pass in one launch that a table names its
// matrices for (kernels/blas/table_passes.hpp): on a device one small matrix after another would be little work for
// many launches. Their products are those of Gemm::batch (core/optimizer/methods/rotated/rotated_updates.hpp). The bits
// are those of the passes over one matrix. Nothing fences.
#pragma once
#include <vector>

#include "kernels/blas/host_values.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"

namespace sestina {

// One matrix of a batch: what its owner says of it, and its place, which make_rotated_batch fills in.
struct RotatedMatrix {
  const float* gradient = nullptr;  // (elements) without padding, as the arrays of the next lines
  float *momentum = nullptr, *second_moment = nullptr, *master = nullptr;
  bf16* weight = nullptr;            // null: none is written
  double lr = 0, weight_decay = 0;   // factors of its own, see WeightMove
  std::size_t elements = 0;          // at least 1
  bool in_scratch = false;           // its direction ends in the first of its three pieces, else in the third
  std::size_t first = 0, place = 0;  // number of its first piece; elements before it in each of the three stacks
};

// Three stacks of numbers, each with all matrices one after another; each begins at a multiple of 256 bytes, as the
// workspace's pieces do, so that the memory of several matrices is the sum of what each takes by itself.
struct RotatedStacks {
  static constexpr std::size_t aligned(std::size_t n) { return (n + 63) / 64 * 64; }
  float* scratch = nullptr;
  std::size_t each = 0;                                                      // elements of a stack
  KOKKOS_INLINE_FUNCTION float* rotated() const { return scratch + each; }   // the gradient in the basis
  KOKKOS_INLINE_FUNCTION float* move() const { return scratch + 2 * each; }  // the momentum there, then the direction
};
// Takes the stacks of matrices that have so many elements in all, each count aligned.
template <class Space>
struct RotatedBatchScratch {
  RotatedBatchScratch(Workspace<Space>& workspace, std::size_t elements)
      : stacks{workspace.template take<float>(3 * elements).data(), elements} {}
  RotatedStacks stacks;
};

template <class Space>
struct RotatedBatch {
  std::vector<RotatedMatrix> matrices;
  std::size_t elements = 0, pieces = 0;  // elements of a stack
  Kokkos::View<RotatedMatrix*, typename Space::memory_space> table;
};

// Makes the table of a batch. Fences.
template <class Space>
RotatedBatch<Space> make_rotated_batch(std::vector<RotatedMatrix>);

// average_momentum of every matrix.
template <class Space>
void average_momenta(const Space&, double beta1, double scale, const RotatedBatch<Space>&);
// rotated_adam of every matrix, from what lies in its pieces of the stacks `rotated` and `move`.
template <class Space>
void rotated_adam(const Space&, const AdamRule&, const RotatedBatch<Space>&, const RotatedStacks&);
// move_weight of every matrix along its direction; lr and weight_decay of the move are factors of the matrices' own.
template <class Space>
void move_weights(const Space&, const WeightMove&, const RotatedBatch<Space>&, const RotatedStacks&);

}  // namespace sestina
