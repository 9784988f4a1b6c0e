// Pieces that Newton-Schulz of a whole matrix (newton_schulz.cpp) and of shards (newton_schulz_shard.cpp) are made of.
#pragma once
#include <limits>

#include "kernels/blas/gemm.hpp"
#include "kernels/optimizer/newton_schulz_step.hpp"

namespace sestina {

// What u is multiplied by. Zero stays zero also without eps.
KOKKOS_INLINE_FUNCTION float inverse_norm(double squares, double eps, bool add) {
  const double norm = Kokkos::sqrt(squares);
  const double by = add ? norm + eps : Kokkos::max(norm, eps);
  constexpr double largest = std::numeric_limits<float>::max();
  if (squares != squares) return static_cast<float>(squares);
  return static_cast<float>(by * largest > 1 ? 1 / by : largest);
}

// to = scale (p x + q y), rounded. x may be null with p = 0.
template <class T>
KOKKOS_INLINE_FUNCTION void scaled_blend(std::size_t n, float scale, float p, const float* __restrict x, float q,
                                         const float* __restrict y, T* __restrict to) {
  const float first = scale * p, second = scale * q;
  if (p == 0) {
    for (std::size_t i = 0; i < n; ++i) to[i] = T(second * y[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) to[i] = T(first * x[i] + second * y[i]);
  }
}

template <class T, class Space>
static void add_to_diagonal(const Space& exec, float value, Matrix<T, Space> a) {
  T* data = a.data();
  const std::size_t next = a.extent(0) + 1;
  Kokkos::parallel_for(
      "ns_diagonal", Kokkos::RangePolicy<Space>(exec, 0, a.extent(0)),
      KOKKOS_LAMBDA(std::size_t i) { data[i * next] = T(static_cast<float>(data[i * next]) + value); });
}

template <class T, class Space>
static void copy_gram(const Space& exec, Matrix<const T, Space> from, Matrix<T, Space> to) {
  constexpr std::size_t length = is_host<Space> ? 8192 : 1;
  const std::size_t n = from.size();
  const T* source = from.data();
  T* target = to.data();
  Kokkos::parallel_for(
      "ns_copy", Kokkos::RangePolicy<Space>(exec, 0, (n + length - 1) / length), KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t end = Kokkos::min(n, (piece + 1) * length);
        for (std::size_t i = piece * length; i < end; ++i) target[i] = source[i];
      });
}

// What the Gram matrix A is multiplied by where it is formed: where it is not squared it needs no further factor.
inline float gram_factor(const NewtonSchulzStep& step) { return step.c == 0 ? static_cast<float>(step.b) : 1.0f; }

// a I + b A + c A^2 from gram_factor A, in one of the two matrices given. With a on the diagonal the last product of a
// step needs no X added to it.
template <class T, class Space>
static Matrix<T, Space> step_polynomial(const Space& exec, Gemm<Space>& gemm, const NewtonSchulzStep& step,
                                        Matrix<T, Space> gram, Matrix<T, Space> square) {
  const float a = static_cast<float>(step.a), b = static_cast<float>(step.b), c = static_cast<float>(step.c);
  if (c == 0) {
    add_to_diagonal(exec, a, gram);
    return gram;
  }
  copy_gram<T>(exec, gram, square);
  gemm.template symmetric<T, T>(Op::none, c, gram, b, square);
  add_to_diagonal(exec, a, square);
  return square;
}

}  // namespace sestina
