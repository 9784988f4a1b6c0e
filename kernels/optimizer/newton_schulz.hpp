// Orthogonalisation by Newton-Schulz iteration: U = P S Q^T becomes about P Q^T, by matrix products only. One step is
// X = a X + (b A + c A^2) X with A = X X^T (newton_schulz_step.hpp). The work is done in wide form: the transpose where
// rows > cols, so that A is the smaller of the two Gram matrices. Stored as T (float or bf16), summed in float, the
// norm in double over fixed chunks. newton_schulz_plain.hpp keeps the obvious loops next to it.
#pragma once
#include <algorithm>
#include <span>

#include "kernels/blas/gemm.hpp"
#include "kernels/blas/reduce.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/optimizer/newton_schulz_step.hpp"

namespace sestina {

struct NewtonSchulz {
  std::span<const NewtonSchulzStep> steps;
  double eps = 1e-7;
  NewtonSchulzNorm norm = NewtonSchulzNorm::max;
};

// p x + q y (n), formed where it is read. With p = 0, x is not read and may be empty.
template <class Space>
struct Blend {
  Vector<const float, Space> x, y;
  float p = 0, q = 1;
};

// The momentum of Muon in one pass: M = keep M + gain G, and the squares of u = p G + q M summed by chunks.
struct MomentumStep {
  float keep = 0, gain = 0, p = 0, q = 0;
};
template <class Space>
void advance_momentum(const Space&, const MomentumStep&, Vector<const float, Space> gradient,
                      Vector<float, Space> momentum, Vector<double, Space> squares);

// Orthogonalises u, taken as (rows, cols), whose squares summed by chunks are `squares`. The result lies in the
// workspace until the caller's frame ends, in wide form: (min(rows, cols), max(rows, cols)). Zero gives zero. Does not
// fence. The bits do not depend on the number of threads when the products are deterministic.
template <class T, class Space>
Matrix<const T, Space> newton_schulz(const Space&, Gemm<Space>&, Workspace<Space>&, const NewtonSchulz&,
                                     const Blend<Space>& u, std::size_t rows, std::size_t cols,
                                     Vector<const double, Space> squares);
// What it takes; the chunk sums are the caller's.
template <class T, class Space>
struct NewtonSchulzScratch {
  NewtonSchulzScratch(Workspace<Space>& workspace, std::size_t rows, std::size_t cols)
      : x(workspace.template take<T>(std::min(rows, cols), std::max(rows, cols))),
        y(workspace.template take<T>(x.extent(0), x.extent(1))),
        gram(workspace.template take<T>(x.extent(0), x.extent(0))),
        square(workspace.template take<T>(x.extent(0), x.extent(0))),
        inverse(workspace.template take<float>(1)) {}
  Matrix<T, Space> x, y, gram, square;
  Vector<float, Space> inverse;
};

// output (m, n) = Newton-Schulz of input (m, n), both without padding; in_bf16: products and storage in bf16.
template <class Space>
void orthogonalize(const Space&, Gemm<Space>&, Workspace<Space>&, const NewtonSchulz&, bool in_bf16,
                   Matrix<const float, Space> input, Matrix<float, Space> output);
template <class Space>
void declare_orthogonalize(Workspace<Space>&, std::size_t rows, std::size_t cols);  // in either precision

}  // namespace sestina
