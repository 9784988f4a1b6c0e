// The parts of linear layers between block-diagonal rotations (POET-X): products with such matrices, permutations as
// index maps, both in one, and rotations near the identity.
#pragma once
#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// Products with block-diagonal matrices whose blocks (b, b) are stacked in a matrix (t, b): one batch of the vendor
// library each. On a side of n = t rows or columns the blocks lie next to each other; on a longer one, at the beginning
// of as many equal parts of it, and what is between them is multiplied by the identity. Nothing fences.

// The first block of a matrix, and the number and size of its blocks of rows or columns.
struct FirstBlock {
  std::size_t count, size;
  FirstBlock(std::size_t t, std::size_t b) : count(b > 0 ? t / b : 0), size(b) {
    SESTINA_REQUIRE(b > 0 && t % b == 0, "blocks of {} in {}", b, t);
  }
  // Returns the rows or columns from one block to the next on a side of n.
  std::size_t apart_on(std::size_t n) const {
    SESTINA_REQUIRE(count > 0 ? n % count == 0 && n / count >= size : n == 0, "{} blocks of {} on a side of {}", count,
                    size, n);
    return count > 0 ? n / count : 0;
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

// Sets y(i, j) = x(i, j) for all columns j but the first `size` of each `apart`.
template <class Exec, class T>
void copy_other_columns(const Exec&, Matrix<const T, Exec> x, std::size_t size, std::size_t apart, Matrix<T, Exec> y);

// Computes y (N, n) = x (N, n) op(blocks) for N rows and blocks (t, b).
template <class Exec, class T>
void times_blocks(const Exec& exec, Gemm<Exec>& gemm, Matrix<const T, Exec> x, Op op, Matrix<const T, Exec> blocks,
                  Matrix<T, Exec> y) {
  SESTINA_REQUIRE(x.extent(1) == y.extent(1), "x (N, {}), y (N, {})", x.extent(1), y.extent(1));
  const FirstBlock first(blocks.extent(0), blocks.extent(1));
  const std::size_t apart = first.apart_on(x.extent(1));
  gemm.template batch<T, T>(first.count, {apart, first.rows_apart(blocks), apart}, Op::none, op, 1, first.cols(x),
                            first.rows(blocks), 0, first.cols(y));
  if (apart > first.size) copy_other_columns<Exec, T>(exec, x, first.size, apart, y);
}

// Computes y (n, N) = op(blocks) x (n, N) for blocks (n, b), next to each other.
template <class Exec, class T>
void blocks_times(Gemm<Exec>& gemm, Op op, Matrix<const T, Exec> blocks, Matrix<const T, Exec> x, Matrix<T, Exec> y) {
  SESTINA_REQUIRE(x.extent(0) == blocks.extent(0) && y.extent(0) == blocks.extent(0), "x ({}, N), y ({}, N), blocks {}",
                  x.extent(0), y.extent(0), blocks.extent(0));
  const FirstBlock first(blocks.extent(0), blocks.extent(1));
  gemm.template batch<T, T>(first.count, {first.rows_apart(blocks), first.rows_apart(x), first.rows_apart(y)}, op,
                            Op::none, 1, first.rows(blocks), first.rows(x), 0, first.rows(y));
}

// Sets, or adds to, d (t, b) the blocks on the diagonal of x^T y for x and y (N, n).
template <class Exec, class T>
void diagonal_blocks(Gemm<Exec>& gemm, Matrix<const T, Exec> x, Matrix<const T, Exec> y, bool add,
                     Matrix<Acc<T>, Exec> d) {
  SESTINA_REQUIRE(x.extent(1) == y.extent(1), "x (N, {}), y (N, {})", x.extent(1), y.extent(1));
  const FirstBlock first(d.extent(0), d.extent(1));
  const std::size_t apart = first.apart_on(x.extent(1));
  gemm.template batch<T, Acc<T>>(first.count, {apart, apart, first.rows_apart(d)}, Op::transpose, Op::none, 1,
                                 first.cols(x), first.cols(y), add ? 1 : 0, first.rows(d));
}

// Computes c = beta c + alpha a b for each block of a, b, c (n, b).
template <class Exec, class A>
void block_pairs(Gemm<Exec>& gemm, A alpha, Matrix<const A, Exec> a, Matrix<const A, Exec> b, A beta,
                 Matrix<A, Exec> c) {
  const FirstBlock first(c.extent(0), c.extent(1));
  gemm.template batch<A, A>(first.count, {first.rows_apart(a), first.rows_apart(b), first.rows_apart(c)}, Op::none,
                            Op::none, alpha, first.rows(a), first.rows(b), beta, first.rows(c));
}

// Permutations of columns and rows are kept as index maps: no permutation is ever a matrix. An index names each place
// once. Nothing fences.

// Sets, or adds to, column j of y (N, n) column index[j] of x.
template <class Exec, class T>
void take_columns(const Exec&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> index, bool add,
                  Matrix<T, Exec> y);
// Sets column index[j] of y (N, n) to column j of x, the inverse of take_columns. y must not be x.
template <class Exec, class T>
void put_columns(const Exec&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> index, Matrix<T, Exec> y);

// Sets element (i, j) of y (m, n) to element (rows[i], cols[j]) of x.
template <class Exec, class From, class To>
void take_elements(const Exec&, Matrix<const From, Exec> x, Vector<const std::int32_t, Exec> rows,
                   Vector<const std::int32_t, Exec> cols, Matrix<To, Exec> y);
// Sets element (rows[i], cols[j]) of y (m, n) to element (i, j) of x; y may have more rows than x.
template <class Exec, class From, class To>
void put_elements(const Exec&, Matrix<const From, Exec> x, Vector<const std::int32_t, Exec> rows,
                  Vector<const std::int32_t, Exec> cols, Matrix<To, Exec> y);

// Sets inverse[index[i]] = i.
template <class Exec>
void invert_index(const Exec&, Vector<const std::int32_t, Exec> index, Vector<std::int32_t, Exec> inverse);
// Replaces places[i] by index[places[i]].
template <class Exec>
void follow_index(const Exec&, Vector<const std::int32_t, Exec> index, Vector<std::int32_t, Exec> places);

// Products with block-diagonal matrices, whose blocks (b, b) are stacked in a matrix (t, b), of columns that a
// permutation moves. A host moves the columns piece by piece, in the cache from which the product takes them or into
// which it has put them; a device all of them before or after the batch of products. Pieces do not depend on the number
// of threads. scratch has at least as many elements as the permuted matrix. Nothing fences.

// Computes y (N, n) = x' op(blocks), x'[:, index[j]] = x[:, j].
template <class Exec, class T>
void put_times_blocks(const Exec&, Gemm<Exec>&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> index, Op op,
                      Matrix<const T, Exec> blocks, Vector<T, Exec> scratch, Matrix<T, Exec> y);

// Sets, or adds to, y[:, j] the column z[:, index[j]] of z = x op(blocks), x (N, n).
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
// by row; its blocks lie stacked in a matrix (n, b). Both sides of a layer are one row for a call (PackedBlocks). On a
// host each thread takes a block from theta to G while it lies in its cache, where there are blocks enough, and so does
// a team of a device with a small block (kernels/model/device/block_series.hpp); else all of them are swept by batches.
// Nothing fences.
KOKKOS_INLINE_FUNCTION constexpr std::size_t skew_elements(std::size_t b) { return b * (b - 1) / 2; }
// Returns the place of (i, j), i < j, in the packed upper triangle of a block of size b.
KOKKOS_FORCEINLINE_FUNCTION std::size_t packed_place(std::size_t i, std::size_t j, std::size_t b) {
  return i * (2 * b - i - 1) / 2 + j - i - 1;
}

// Packed blocks of one side, or of both sides of a layer, as if the second ones lay behind the first ones.
template <class Exec, class A>
struct PackedBlocks {
  Vector<A, Exec> first, second;
  template <class V>
  requires std::is_convertible_v<V, Vector<A, Exec>> PackedBlocks(const V& one) : first(one) {}
  PackedBlocks(Vector<A, Exec> one, Vector<A, Exec> other) : first(one), second(other) {}

  std::size_t elements() const { return first.extent(0) + second.extent(0); }
  // Returns the numbers of a block; each has as many.
  KOKKOS_INLINE_FUNCTION A* block(std::size_t number, std::size_t each) const {
    const std::size_t before = first.extent(0) / each;
    return number < before ? first.data() + number * each : second.data() + (number - before) * each;
  }
};

// Sets q (n, b) = U - U^T for each block of theta.
template <class Exec, class A>
void unpack_skew(const Exec&, PackedBlocks<Exec, const A> theta, Matrix<A, Exec> q);
// Sets, or adds to, theta_ij the difference d_ij - d_ji for i < j: the gradient of theta from that of q.
template <class Exec, class A>
void pack_skew(const Exec&, Matrix<const A, Exec> d, bool accumulate, PackedBlocks<Exec, A> theta);

// cayley_neumann and its backward pass take at most four pieces of n b elements of Acc<T> from the workspace.

// Computes g (n, b) from theta, in Acc<T>, and rounds once.
template <class Exec, class T>
void cayley_neumann(const Exec&, Gemm<Exec>&, Workspace<Exec>&, double k, PackedBlocks<Exec, const Acc<T>> theta,
                    Matrix<T, Exec> g);

// Sets, or adds to, d_theta the gradient of theta from d_g (n, b), which is used up:
//   N = d_G Q^T + Q^T d_G,  d_Q = 2 (d_G + N) + (2 d_G + k N) Q2^T + (2 Q^T + k Q2^T) N,  Q2 = Q Q.
template <class Exec, class A>
void cayley_neumann_backward(const Exec&, Gemm<Exec>&, Workspace<Exec>&, double k, PackedBlocks<Exec, const A> theta,
                             Matrix<A, Exec> d_g, bool accumulate, PackedBlocks<Exec, A> d_theta);

}  // namespace sestina
