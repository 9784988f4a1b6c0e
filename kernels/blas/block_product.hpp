// Products with block-diagonal matrices whose blocks (b, b) are stacked in a matrix (n, b): one batch of the vendor
// library each. Nothing fences.
#pragma once
#include "kernels/base/error.hpp"
#include "kernels/blas/gemm.hpp"

namespace sestina {

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

}  // namespace sestina
