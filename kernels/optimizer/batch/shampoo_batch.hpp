// Shampoo's passes over a block of a matrix, and over all blocks of a batch in one launch each (flat_batch.hpp): the
// averages of the gradient with the direction of the graft, and the size that the graft gives to Shampoo's own
// direction. Nothing fences.
#pragma once
#include "kernels/optimizer/batch/flat_batch.hpp"

namespace sestina {

// Both averages of gradient G, the filtered gradient and the graft's direction:
//   filtered = lerp(F, G, learn3) inv_bias1, then F = lerp(F, G, learn1)
//   V = V - forget V + gain G^2, graft = filtered / (sqrt(V inv_bias2) + eps)
struct FilterRule {
  float gradient = 1, learn1 = 0, learn3 = 0, inv_bias1 = 1;  // gradient: its scale
  bool second_moment = false;
  float forget = 0, gain = 0, inv_bias2 = 1, eps = 0;
};

// The arrays all have one shape (bm, bn); without a second moment, that and graft may be (0, 0).
template <class Space>
struct FilterData {
  Matrix<const float, Space> gradient;
  Matrix<float, Space> momentum, second_moment, filtered, graft;
};
template <class Space>
void filter(const Space&, const FilterRule&, const FilterData<Space>&);
// Of all blocks of a batch: filtered and graft are stacks.
template <class Space>
void filter(const Space&, const FilterRule&, const FlatBatch<Space>&, const FlatStacks&, std::size_t filtered,
            std::size_t graft);

// Returns the factor that gives a direction the size of its graft, from the sums of squares of both; the least norm is
// that of the published rule.
KOKKOS_INLINE_FUNCTION double graft_factor(double graft, double direction) {
  constexpr double tiny = 1e-16;
  return Kokkos::sqrt(graft) / (Kokkos::sqrt(direction) + tiny);
}
// Takes squares (2) of the graft and of the direction; the first becomes the factor.
template <class Space>
void make_graft_factor(const Space&, Vector<double, Space> squares);

// Squares by pieces, and the factor of each block of a batch.
template <class Space>
struct GraftScratch {
  GraftScratch(Workspace<Space>& workspace, std::size_t pieces, std::size_t blocks)
      : graft(workspace.template take<double>(pieces)),
        direction(workspace.template take<double>(pieces)),
        factors(workspace.template take<double>(blocks)) {}
  Vector<double, Space> graft, direction, factors;
};
// Sets squares to those of what lies in a stack, by pieces of all blocks.
template <class Space>
void squares_of_stack(const Space&, const FlatBatch<Space>&, const FlatStacks&, std::size_t stack,
                      Vector<double, Space> squares);
// Sets the factors, one for each block.
template <class Space>
void make_graft_factors(const Space&, const FlatBatch<Space>&, const GraftScratch<Space>&);

}  // namespace sestina
