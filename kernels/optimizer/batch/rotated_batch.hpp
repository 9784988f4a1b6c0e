// The passes of methods with bases over all matrices of a batch (flat_batch.hpp), each in one launch: those of
// kernels/optimizer/rotated/rotated_adam.hpp, and the sums of squares of kernels/blas/sums.hpp but for the order of
// their terms. `stack` is the number of the stack that a pass reads or writes. Nothing fences.
#pragma once
#include "kernels/optimizer/batch/flat_batch.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"

namespace sestina {

// rotated_adam of the gradients in the bases and of the momenta there, which become the directions.
template <class Space>
void rotated_adam(const Space&, const AdamRule&, const FlatBatch<Space>&, const FlatStacks&, std::size_t gradients,
                  std::size_t momenta);
// Its two halves.
template <class Space>
void average_squares(const Space&, double beta2, const FlatBatch<Space>&, const FlatStacks&, std::size_t stack);
template <class Space>
void divide_by_root(const Space&, double eps, const FlatBatch<Space>&, const FlatStacks&, std::size_t stack);

// One side of a matrix, with eigenvalues for its lines: rows on the left, columns on the right. What its owner says of
// it, and what make_flat_sides fills in.
struct FlatSide {
  FlatMatrix of;
  bool left = false;
  float* values = nullptr;
  double ceiling = 0;          // of average_eigenvalues
  float scale = 0, least = 0;  // 1 / elements of a line, and the least eigenvalue
  std::size_t elements = 0;    // lines
  std::size_t first = 0;       // number of its first piece

  // Returns the place of its first line among all lines.
  KOKKOS_INLINE_FUNCTION std::size_t line() const { return of.line + (left ? 0 : of.rows); }
};
template <class Space>
struct FlatSides {
  std::size_t pieces = 0;
  Kokkos::View<FlatSide*, typename Space::memory_space> table;
};

// Makes the table of sides. Fences.
template <class Space>
FlatSides<Space> make_flat_sides(std::vector<FlatSide>);

// inverse_square_roots of the eigenvalues of all lines: roots (FlatBatch::lines).
template <class Space>
void inverse_square_roots(const Space&, const FlatSides<Space>&, Vector<float, Space> roots);
// average_eigenvalues of all lines, with the sums of squares of what lies in a stack, weighted by the roots of the
// other side.
template <class Space>
void average_eigenvalues(const Space&, double beta, const FlatSides<Space>&, const FlatStacks&, std::size_t stack,
                         Vector<const float, Space> roots);
// scale_damped by the roots of both sides, and scale_lines by those of one.
template <class Space>
void scale_damped(const Space&, double eps, const FlatBatch<Space>&, const FlatStacks&, std::size_t stack,
                  Vector<const float, Space> roots);
template <class Space>
void scale_lines(const Space&, bool left, const FlatBatch<Space>&, const FlatStacks&, std::size_t stack,
                 Vector<const float, Space> roots);

}  // namespace sestina
