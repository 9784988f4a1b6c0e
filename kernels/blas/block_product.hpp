// Products with block-diagonal matrices whose blocks (b, b) are stacked in a matrix (n, b): blocks one behind the
// other, each a product of the vendor library. Nothing fences.
#pragma once
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/blas/gemm.hpp"

namespace sestina {

// body(begin, end) for the range of rows and columns of each block.
template <class Body>
void for_blocks(std::size_t n, std::size_t b, const Body& body) {
  SESTINA_REQUIRE(b > 0 && n % b == 0, "blocks of {} in {}", b, n);
  for (std::size_t begin = 0; begin < n; begin += b) body(std::pair{begin, begin + b});
}

// y (N, n) = x (N, n) op(blocks), blocks (n, b).
template <class Exec, class T>
void times_blocks(Gemm<Exec>& gemm, Matrix<const T, Exec> x, Op op, Matrix<const T, Exec> blocks, Matrix<T, Exec> y) {
  SESTINA_REQUIRE(x.extent(1) == blocks.extent(0) && y.extent(1) == blocks.extent(0), "x (N, {}), y (N, {}), blocks {}",
                  x.extent(1), y.extent(1), blocks.extent(0));
  for_blocks(blocks.extent(0), blocks.extent(1), [&](std::pair<std::size_t, std::size_t> range) {
    gemm.template operator()<T, T>(Op::none, op, 1, Kokkos::subview(x, Kokkos::ALL, range),
                                   Kokkos::subview(blocks, range, Kokkos::ALL), 0,
                                   Kokkos::subview(y, Kokkos::ALL, range));
  });
}

// y (n, N) = op(blocks) x (n, N).
template <class Exec, class T>
void blocks_times(Gemm<Exec>& gemm, Op op, Matrix<const T, Exec> blocks, Matrix<const T, Exec> x, Matrix<T, Exec> y) {
  SESTINA_REQUIRE(x.extent(0) == blocks.extent(0) && y.extent(0) == blocks.extent(0), "x ({}, N), y ({}, N), blocks {}",
                  x.extent(0), y.extent(0), blocks.extent(0));
  for_blocks(blocks.extent(0), blocks.extent(1), [&](std::pair<std::size_t, std::size_t> range) {
    gemm.template operator()<T, T>(op, Op::none, 1, Kokkos::subview(blocks, range, Kokkos::ALL),
                                   Kokkos::subview(x, range, Kokkos::ALL), 0, Kokkos::subview(y, range, Kokkos::ALL));
  });
}

// d (n, b) = the blocks on the diagonal of x^T y, x and y (N, n).
template <class Exec, class T>
void diagonal_blocks(Gemm<Exec>& gemm, Matrix<const T, Exec> x, Matrix<const T, Exec> y, Matrix<Acc<T>, Exec> d) {
  SESTINA_REQUIRE(x.extent(1) == d.extent(0) && y.extent(1) == d.extent(0), "x (N, {}), y (N, {}), blocks {}",
                  x.extent(1), y.extent(1), d.extent(0));
  for_blocks(d.extent(0), d.extent(1), [&](std::pair<std::size_t, std::size_t> range) {
    gemm.template operator()<T, Acc<T>>(Op::transpose, Op::none, 1, Kokkos::subview(x, Kokkos::ALL, range),
                                        Kokkos::subview(y, Kokkos::ALL, range), 0,
                                        Kokkos::subview(d, range, Kokkos::ALL));
  });
}

// c = beta c + alpha a b for each block of a, b, c (n, b).
template <class Exec, class A>
void block_pairs(Gemm<Exec>& gemm, A alpha, Matrix<const A, Exec> a, Matrix<const A, Exec> b, A beta,
                 Matrix<A, Exec> c) {
  for_blocks(c.extent(0), c.extent(1), [&](std::pair<std::size_t, std::size_t> range) {
    gemm.template operator()<A, A>(Op::none, Op::none, alpha, Kokkos::subview(a, range, Kokkos::ALL),
                                   Kokkos::subview(b, range, Kokkos::ALL), beta,
                                   Kokkos::subview(c, range, Kokkos::ALL));
  });
}

}  // namespace sestina
