// What linear layers between block-diagonal rotations are made of (POET-X): products with such matrices, permutations
// as index maps, both in one, and rotations near the identity.
#pragma once
#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// Products with block-diagonal matrices whose blocks (b, b) are stacked in a matrix (n, b): one batch of the vendor
// library each. Nothing fences.

// Rows, or columns, of the first block.
struct FirstBlock {
  std::size_t count, size;
  FirstBlock(std::size_t n, std::size_t b) : count(b > 0 ? n / b : 0), size(b) {
    SESTINA_REQUIRE(b > 0 && n % b == 0, "blocks of {} in {}", b, n);
  }
  template <class Matrix>
  Matrix rows(const Matrix& x) const {
    return Kokkos::subview(x, std::pair(std::size_t{0}, size), Kokkos::ALL);
  }
  template <class Matrix>
  Matrix cols(const Matrix& x) const {
    return Kokkos::subview(x, Kokkos::ALL, std::pair(std::size_t{0}, size));
  }
  template <class Matrix>
  std::size_t rows_apart(const Matrix& x) const {
    return size * x.stride(0);
  }
};

// y (N, n) = x (N, n) op(blocks), blocks (n, b).
template <class Exec, class T>
void times_blocks(Gemm<Exec>& gemm, Matrix<const T, Exec> x, Op op, Matrix<const T, Exec> blocks, Matrix<T, Exec> y) {
  SESTINA_REQUIRE(x.extent(1) == blocks.extent(0) && y.extent(1) == blocks.extent(0), "x (N, {}), y (N, {}), blocks {}",
                  x.extent(1), y.extent(1), blocks.extent(0));
  const FirstBlock first(blocks.extent(0), blocks.extent(1));
  gemm.template batch<T, T>(first.count, {first.size, first.rows_apart(blocks), first.size}, Op::none, op, 1,
                            first.cols(x), first.rows(blocks), 0, first.cols(y));
}

// y (n, N) = op(blocks) x (n, N).
template <class Exec, class T>
void blocks_times(Gemm<Exec>& gemm, Op op, Matrix<const T, Exec> blocks, Matrix<const T, Exec> x, Matrix<T, Exec> y) {
  SESTINA_REQUIRE(x.extent(0) == blocks.extent(0) && y.extent(0) == blocks.extent(0), "x ({}, N), y ({}, N), blocks {}",
                  x.extent(0), y.extent(0), blocks.extent(0));
  const FirstBlock first(blocks.extent(0), blocks.extent(1));
  gemm.template batch<T, T>(first.count, {first.rows_apart(blocks), first.rows_apart(x), first.rows_apart(y)}, op,
                            Op::none, 1, first.rows(blocks), first.rows(x), 0, first.rows(y));
}

// d (n, b) = the blocks on the diagonal of x^T y, x and y (N, n).
template <class Exec, class T>
void diagonal_blocks(Gemm<Exec>& gemm, Matrix<const T, Exec> x, Matrix<const T, Exec> y, Matrix<Acc<T>, Exec> d) {
  SESTINA_REQUIRE(x.extent(1) == d.extent(0) && y.extent(1) == d.extent(0), "x (N, {}), y (N, {}), blocks {}",
                  x.extent(1), y.extent(1), d.extent(0));
  const FirstBlock first(d.extent(0), d.extent(1));
  gemm.template batch<T, Acc<T>>(first.count, {first.size, first.size, first.rows_apart(d)}, Op::transpose, Op::none, 1,
                                 first.cols(x), first.cols(y), 0, first.rows(d));
}

// c = beta c + alpha a b for each block of a, b, c (n, b).
template <class Exec, class A>
void block_pairs(Gemm<Exec>& gemm, A alpha, Matrix<const A, Exec> a, Matrix<const A, Exec> b, A beta,
                 Matrix<A, Exec> c) {
  const FirstBlock first(c.extent(0), c.extent(1));
  gemm.template batch<A, A>(first.count, {first.rows_apart(a), first.rows_apart(b), first.rows_apart(c)}, Op::none,
                            Op::none, alpha, first.rows(a), first.rows(b), beta, first.rows(c));
}

// Columns and rows of matrices by permutations kept as index maps: no permutation is ever a matrix. An index names each
// place once. Nothing fences.

// y (N, n): column j = or += column index[j] of x.
template <class Exec, class T>
void take_columns(const Exec&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> index, bool add,
                  Matrix<T, Exec> y);
// y (N, n): column index[j] = column j of x, the inverse of take_columns. y must not be x.
template <class Exec, class T>
void put_columns(const Exec&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> index, Matrix<T, Exec> y);

// y (m, n) = x with element (i, j) taken from (rows[i], cols[j]).
template <class Exec, class From, class To>
void take_elements(const Exec&, Matrix<const From, Exec> x, Vector<const std::int32_t, Exec> rows,
                   Vector<const std::int32_t, Exec> cols, Matrix<To, Exec> y);
// y (m, n) = x with element (i, j) put to (rows[i], cols[j]); y may have more rows than x.
template <class Exec, class From, class To>
void put_elements(const Exec&, Matrix<const From, Exec> x, Vector<const std::int32_t, Exec> rows,
                  Vector<const std::int32_t, Exec> cols, Matrix<To, Exec> y);

// inverse[index[i]] = i.
template <class Exec>
void invert_index(const Exec&, Vector<const std::int32_t, Exec> index, Vector<std::int32_t, Exec> inverse);
// places[i] becomes index[places[i]].
template <class Exec>
void follow_index(const Exec&, Vector<const std::int32_t, Exec> index, Vector<std::int32_t, Exec> places);

// Products with block-diagonal matrices whose blocks (b, b) are stacked in a matrix (n, b), of columns that a
// permutation moves. On a host the columns are moved piece by piece, in the cache from which the product takes them or
// into which it has put them; on a device all of them before or after the batch of products. Pieces do not depend on
// the number of threads. scratch: at least as many elements as the permuted matrix. Nothing fences.

// y (N, n) = x' op(blocks), x'[:, index[j]] = x[:, j].
template <class Exec, class T>
void put_times_blocks(const Exec&, Gemm<Exec>&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> index, Op op,
                      Matrix<const T, Exec> blocks, Vector<T, Exec> scratch, Matrix<T, Exec> y);

// y[:, j] = or += z[:, index[j]], z = x op(blocks), x (N, n).
template <class Exec, class T>
void times_blocks_take(const Exec&, Gemm<Exec>&, Matrix<const T, Exec> x, Op op, Matrix<const T, Exec> blocks,
                       Vector<const std::int32_t, Exec> index, bool add, Vector<T, Exec> scratch, Matrix<T, Exec> y);

// Rotations near the identity from skew-symmetric matrices, by the first terms of the Neumann series of the Cayley
// transform (POET-X, Qiu et al. 2026, section 3):
//   G = I + 2 Q + 2 Q^2 + 2 Q^3 + k Q^4,  Q = U - U^T.
// k = 1 as published: G^T G = (I - Q^4)^2, so singular values fall short of 1 by the fourth power of Q's. k = 2:
// G^T G = I + 4 Q^6 + 4 Q^8, two orders better at the same cost. The series is a polynomial: Q of any size has a value,
// but only ||Q|| well below 1 gives a rotation.
//
// A row of n / b blocks is kept packed: theta (n / b, b (b - 1) / 2) is the strict upper triangle U of each block, row
// by row; its blocks lie stacked in a matrix (n, b). On a host each thread takes a block from theta to G while it lies
// in its cache, where there are blocks enough; else, and on a device, all of them are swept by batches. The formulas
// are written once for both. Nothing fences.
constexpr std::size_t skew_elements(std::size_t b) { return b * (b - 1) / 2; }

// q (n, b) = U - U^T of each block of theta.
template <class Exec, class A>
void unpack_skew(const Exec&, Vector<const A, Exec> theta, Matrix<A, Exec> q);
// theta_ij = or += d_ij - d_ji for i < j: the gradient of theta from that of q.
template <class Exec, class A>
void pack_skew(const Exec&, Matrix<const A, Exec> d, bool accumulate, Vector<A, Exec> theta);

// Each of the two takes at most four pieces of n b elements of Acc<T> from the workspace.

// g (n, b) from theta, computed in Acc<T> and rounded once.
template <class Exec, class T>
void cayley_neumann(const Exec&, Gemm<Exec>&, Workspace<Exec>&, double k, Vector<const Acc<T>, Exec> theta,
                    Matrix<T, Exec> g);

// d_theta = or += the gradient of theta from d_g (n, b), which is used up:
//   N = d_G Q^T + Q^T d_G,  d_Q = 2 (d_G + N) + (2 d_G + k N) Q2^T + (2 Q^T + k Q2^T) N,  Q2 = Q Q.
template <class Exec, class A>
void cayley_neumann_backward(const Exec&, Gemm<Exec>&, Workspace<Exec>&, double k, Vector<const A, Exec> theta,
                             Matrix<A, Exec> d_g, bool accumulate, Vector<A, Exec> d_theta);

}  // namespace sestina
