#include "kernels/model/cayley_neumann.hpp"

#include "kernels/blas/block_product.hpp"
#include "kernels/blas/elementwise.hpp"
#include "kernels/blas/reduce.hpp"

namespace sestina {
namespace {

void require_packed(std::size_t n, std::size_t b, std::size_t packed) {
  SESTINA_REQUIRE(b > 1 && n % b == 0 && packed == n / b * skew_elements(b), "{} numbers for blocks ({}, {})", packed,
                  n, b);
}

// Place of (i, j), i < j, in the packed upper triangle of a block of size b.
KOKKOS_FORCEINLINE_FUNCTION std::size_t packed_place(std::size_t i, std::size_t j, std::size_t b) {
  return i * (2 * b - i - 1) / 2 + j - i - 1;
}

template <class Exec, class A>
Matrix<A, Exec> take_like(Workspace<Exec>& workspace, const Matrix<A, Exec>& m) {
  return workspace.template take<A>(m.extent(0), m.extent(1));
}

// p = 2 q + k q2, sum = I + 2 q + 2 q2.
template <class Exec, class A>
void start_series(const Exec& exec, A k, Matrix<const A, Exec> q, Matrix<const A, Exec> q2, Matrix<A, Exec> p,
                  Matrix<A, Exec> sum) {
  const std::size_t b = q.extent(1);
  for_elements(
      "cayley_sum", exec, q.extent(0), b, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const std::size_t diagonal = i % b;
        for (std::size_t j = begin; j < end; ++j) {
          const A x = 2 * q(i, j), y = q2(i, j);
          p(i, j) = x + k * y;
          sum(i, j) = (j == diagonal ? A(1) : A(0)) + x + 2 * y;
        }
      });
}

// With n and d_G: left = 2 d_G + k n, d_G becomes 2 (d_G + n), q becomes k q2 - 2 q.
template <class Exec, class A>
void start_gradient(const Exec& exec, A k, Matrix<const A, Exec> n, Matrix<const A, Exec> q2, Matrix<A, Exec> q,
                    Matrix<A, Exec> d_g, Matrix<A, Exec> left) {
  for_elements(
      "cayley_back", exec, q.extent(0), q.extent(1), KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        for (std::size_t j = begin; j < end; ++j) {
          const A d = d_g(i, j), sum = n(i, j);
          left(i, j) = 2 * d + k * sum;
          d_g(i, j) = 2 * (d + sum);
          q(i, j) = k * q2(i, j) - 2 * q(i, j);
        }
      });
}

}  // namespace

template <class Exec, class A>
void unpack_skew(const Exec& exec, Vector<const A, Exec> theta, Matrix<A, Exec> q) {
  const std::size_t n = q.extent(0), b = q.extent(1);
  require_packed(n, b, theta.extent(0));
  const std::size_t block = skew_elements(b);
  for_elements(
      "unpack_skew", exec, n, b, KOKKOS_LAMBDA(std::size_t row, std::size_t begin, std::size_t end) {
        const A* upper = theta.data() + row / b * block;
        const std::size_t i = row % b;
        for (std::size_t j = begin; j < Kokkos::min(end, i); ++j) q(row, j) = -upper[packed_place(j, i, b)];
        if (begin <= i && i < end) q(row, i) = 0;
        for (std::size_t j = Kokkos::max(begin, i + 1); j < end; ++j) q(row, j) = upper[packed_place(i, j, b)];
      });
}

template <class Exec, class A>
void pack_skew(const Exec& exec, Matrix<const A, Exec> d, bool accumulate, Vector<A, Exec> theta) {
  const std::size_t n = d.extent(0), b = d.extent(1);
  require_packed(n, b, theta.extent(0));
  const std::size_t block = skew_elements(b);
  for_elements(
      "pack_skew", exec, n, b, KOKKOS_LAMBDA(std::size_t row, std::size_t begin, std::size_t end) {
        A* upper = theta.data() + row / b * block;
        const std::size_t i = row % b, first = row - i;
        for (std::size_t j = Kokkos::max(begin, i + 1); j < end; ++j) {
          A& to = upper[packed_place(i, j, b)];
          const A value = d(row, j) - d(first + j, i);
          to = accumulate ? to + value : value;
        }
      });
}

template <class Exec, class T>
void cayley_neumann(const Exec& exec, Gemm<Exec>& gemm, Workspace<Exec>& workspace, double k,
                    Vector<const Acc<T>, Exec> theta, Matrix<T, Exec> g) {
  using A = Acc<T>;
  auto frame = workspace.frame();
  const std::size_t n = g.extent(0), b = g.extent(1);
  const Matrix<A, Exec> q = workspace.template take<A>(n, b), q2 = take_like(workspace, q), p = take_like(workspace, q);
  Matrix<A, Exec> sum;
  if constexpr (std::is_same_v<T, A>)
    sum = g;
  else
    sum = take_like(workspace, q);
  unpack_skew<Exec, A>(exec, theta, q);
  block_pairs<Exec, A>(gemm, 1, q, q, 0, q2);
  start_series<Exec, A>(exec, A(k), q, q2, p, sum);
  block_pairs<Exec, A>(gemm, 1, q2, p, 1, sum);  // 2 Q^3 + k Q^4
  if constexpr (!std::is_same_v<T, A>)
    convert<Exec, A, T>(exec, Vector<const A, Exec>(sum.data(), n * b), Vector<T, Exec>(g.data(), n * b));
}

template <class Exec, class A>
void cayley_neumann_backward(const Exec& exec, Gemm<Exec>& gemm, Workspace<Exec>& workspace, double k,
                             Vector<const A, Exec> theta, Matrix<A, Exec> d_g, bool accumulate,
                             Vector<A, Exec> d_theta) {
  auto frame = workspace.frame();
  const Matrix<A, Exec> q = take_like(workspace, d_g), q2 = take_like(workspace, d_g), n = take_like(workspace, d_g),
                        left = take_like(workspace, d_g);
  unpack_skew<Exec, A>(exec, theta, q);
  block_pairs<Exec, A>(gemm, 1, q, q, 0, q2);
  // Q^T = -Q and Q2^T = Q2 from here on.
  block_pairs<Exec, A>(gemm, -1, d_g, q, 0, n);
  block_pairs<Exec, A>(gemm, -1, q, d_g, 1, n);
  start_gradient<Exec, A>(exec, A(k), n, q2, q, d_g, left);
  block_pairs<Exec, A>(gemm, 1, left, q2, 1, d_g);
  block_pairs<Exec, A>(gemm, 1, q, n, 1, d_g);
  pack_skew<Exec, A>(exec, d_g, accumulate, d_theta);
}

#define SESTINA_SKEW(Exec, A)                                                                        \
  template void unpack_skew<Exec, A>(const Exec&, Vector<const A, Exec>, Matrix<A, Exec>);           \
  template void pack_skew<Exec, A>(const Exec&, Matrix<const A, Exec>, bool, Vector<A, Exec>);       \
  template void cayley_neumann_backward<Exec, A>(const Exec&, Gemm<Exec>&, Workspace<Exec>&, double, \
                                                 Vector<const A, Exec>, Matrix<A, Exec>, bool, Vector<A, Exec>);
#define SESTINA_CAYLEY(Exec, T)                                                             \
  template void cayley_neumann<Exec, T>(const Exec&, Gemm<Exec>&, Workspace<Exec>&, double, \
                                        Vector<const Acc<T>, Exec>, Matrix<T, Exec>);
#define SESTINA_ROTATIONS(Exec) \
  SESTINA_SKEW(Exec, float)     \
  SESTINA_SKEW(Exec, double)    \
  SESTINA_CAYLEY(Exec, float)   \
  SESTINA_CAYLEY(Exec, double)  \
  SESTINA_CAYLEY(Exec, bf16)
SESTINA_INSTANTIATE_LANES(SESTINA_ROTATIONS)

}  // namespace sestina
