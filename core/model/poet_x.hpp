// The linear layer of POET-X (Qiu et al. 2026), y = x W^T with a frozen base H (out, in) between block-diagonal
// rotations G_in, G_out and two permutations kept as index maps:
//   x'[:, perm_in[j]] = x[:, j];  a = x' G_in;  c = a H^T;  z = c G_out;  y[:, i] = z[:, perm_out[i]],
// so that W = (blockdiag(G_out)^T H blockdiag(G_in)^T)[perm_out][:, perm_in]. Blocks hold a whole side, or
// (model.linear.sampling = "fully-stochastic") the first b rows or columns of it, as permuted, or of each of its equal
// parts, and the rest is turned by the identity: a packed rotation has as many blocks as it is long. H = W permuted
// from the very start, so rotations of zero give W. The other two permutations of the paper are absorbed into H. Blocks
// are Cayley-Neumann rotations of packed skew matrices (kernels/model/block_rotations.hpp); H has no gradient. N is the
// number of rows of x.
#pragma once
#include <functional>

#include "core/layout/poet_x_form.hpp"
#include "core/layout/rotation_record.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/model/quantise.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {

// The space in which the products run, and their scratch.
template <class Exec>
struct ProductSpace {
  const Exec& exec;
  Gemm<Exec>& gemm;
  Workspace<Exec>& workspace;
};

// The frozen base (out, in): values, or codes of 8 or 4 bits. Values in bf16 alone would lose half a unit in their last
// place at each merge, 4 % of their length after 1,500 of them, and codes as much of their step: a residual next to
// each one keeps what is left over (kernels/model/quantise.hpp). Passes read the values, or codes, alone.
template <class Exec, class T>
struct PoetBase {
  Matrix<T, Exec> values;                     // empty where codes are kept
  Matrix<std::uint8_t, Exec> residuals = {};  // next to values; empty: none
  GroupCodes<Exec, Acc<T>> coded = {};
};

template <class Exec, class T>
struct PoetWeight {
  PoetBase<Exec, T> base;
  Vector<std::int32_t, Exec> perm_in, perm_out;    // (in), (out)
  Vector<Acc<T>, Exec> rotation_in, rotation_out;  // packed, see kernels/model/block_rotations.hpp
  std::size_t rows() const { return perm_out.extent(0); }
  std::size_t cols() const { return perm_in.extent(0); }
};

// Computes y (N, out) from x (N, in). kept (N, out) receives c, which the backward pass would make again, or is empty.
template <class Exec, class T>
void poet_forward(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&, Matrix<const T, Exec> x,
                  Matrix<T, Exec> kept, Matrix<T, Exec> y);
// Sets, or adds to, dx (N, in) the gradient from dy (N, out); d_inner (N, in) receives that of a for the next function.
template <class Exec, class T>
void poet_backward_input(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&,
                         Matrix<const T, Exec> dy, bool add, Matrix<T, Exec> d_inner, Matrix<T, Exec> dx);
// Sets, or adds to, the gradients of both rotations. kept empty: c is made again from x, with the same bits.
template <class Exec, class T>
void poet_backward_rotations(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&,
                             Matrix<const T, Exec> dy, Matrix<const T, Exec> x, Matrix<const T, Exec> kept,
                             Matrix<const T, Exec> d_inner, bool accumulate, Vector<Acc<T>, Exec> d_rotation_in,
                             Vector<Acc<T>, Exec> d_rotation_out);

// The gradient of the rotations in two parts. The blocks G are the same in all passes of an update, and the series'
// backward pass is linear in dG: blocks (n, b) of several passes are added up and go through it once, which is the sum
// of their gradients but for rounding. One pass through both parts has the bits of poet_backward_rotations.
template <class Exec, class A>
struct PoetBlocks {
  Matrix<A, Exec> all;  // those of the inputs, and behind them those of the outputs
  std::size_t rows_in;  // of the first ones
  Matrix<A, Exec> in() const { return Matrix<A, Exec>(all.data(), rows_in, all.extent(1)); }
  Matrix<A, Exec> out() const {
    return Matrix<A, Exec>(all.data() + rows_in * all.extent(1), all.extent(0) - rows_in, all.extent(1));
  }
};
// Sets, or adds to, the gradients of the blocks of both sides.
template <class Exec, class T>
void poet_backward_blocks(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&,
                          Matrix<const T, Exec> dy, Matrix<const T, Exec> x, Matrix<const T, Exec> kept,
                          Matrix<const T, Exec> d_inner, bool accumulate, const PoetBlocks<Exec, Acc<T>>&);
// Sets the gradients of both rotations from those of the blocks, which are used up.
template <class Exec, class T>
void poet_rotations_from_blocks(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&,
                                const PoetBlocks<Exec, Acc<T>>&, Vector<Acc<T>, Exec> d_rotation_in,
                                Vector<Acc<T>, Exec> d_rotation_out);

// Computes w (out, in), the weight that the layer is in its passes, in Acc<T>.
template <class Exec, class T>
void poet_effective(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&, Matrix<Acc<T>, Exec> w);
// Sets the base from w (out, in) by the permutations in place; rotations become zero.
template <class Exec, class T>
void poet_assign(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&,
                 Matrix<const Acc<T>, Exec> w);
// Merges: rotations go into the base, tile of rows by tile, and become zero. The layer stays what it is, but for the
// rounding of its base. draw() gives new permutations in the place of the old ones.
template <class Exec, class T>
void poet_merge(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&,
                const std::function<void()>& draw);

// Measures rotations and singular values, in the scratch that declare_poet_measure takes. shards: the parts here whose
// singular values are to be told. Fences.
template <class Exec, class T>
RotationMeasure poet_measure(const ProductSpace<Exec>&, Solver<Exec>&, const PoetOptions&, const ShardedSides& shards,
                             const PoetWeight<Exec, T>&);
// Returns the largest ||Q||_2 of its blocks alone, as that measure has it. Fences.
template <class Exec, class T>
double poet_largest_rotation(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&);
template <class Exec>
void declare_poet_measure(Workspace<Exec>&, const LinearOptions& here, const FormShape&, TensorCut, RotationLook);

}  // namespace sestina
