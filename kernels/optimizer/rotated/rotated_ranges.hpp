// The loops of Adam in a rotated basis over plain pointers that do not overlap, so that the compiler vectorises them:
// those of one matrix (rotated_adam.cpp) and of many (kernels/optimizer/batch) have the same bits.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"

namespace sestina {

// The rates of a rule in the type of the arithmetic.
struct AdamRates {
  float one_minus_beta1, one_minus_beta2, eps;
  explicit AdamRates(const AdamRule& rule)
      : one_minus_beta1(static_cast<float>(1 - rule.beta1)),
        one_minus_beta2(static_cast<float>(1 - rule.beta2)),
        eps(static_cast<float>(rule.eps)) {}
};

KOKKOS_INLINE_FUNCTION void average_range(float rate, float scale, std::size_t n, const float* __restrict g,
                                          float* __restrict m) {
  for (std::size_t i = 0; i < n; ++i) m[i] += rate * (scale * g[i] - m[i]);
}
KOKKOS_INLINE_FUNCTION void rotated_range(const AdamRates& r, std::size_t n, const float* __restrict g,
                                          float* __restrict v, float* __restrict d) {
  for (std::size_t i = 0; i < n; ++i) {
    v[i] += r.one_minus_beta2 * (g[i] * g[i] - v[i]);
    d[i] /= Kokkos::sqrt(v[i]) + r.eps;
  }
}
KOKKOS_INLINE_FUNCTION void square_range(float rate, std::size_t n, const float* __restrict g, float* __restrict v) {
  for (std::size_t i = 0; i < n; ++i) v[i] += rate * (g[i] * g[i] - v[i]);
}
KOKKOS_INLINE_FUNCTION void divide_range(float eps, std::size_t n, const float* __restrict v, float* __restrict d) {
  for (std::size_t i = 0; i < n; ++i) d[i] /= Kokkos::sqrt(v[i]) + eps;
}
KOKKOS_INLINE_FUNCTION void scale_range(float row, std::size_t n, const float* __restrict cols, float* __restrict x) {
  for (std::size_t j = 0; j < n; ++j) x[j] *= row * cols[j];
}
KOKKOS_INLINE_FUNCTION void damped_range(float eps, float row, std::size_t n, const float* __restrict cols,
                                         float* __restrict x) {
  for (std::size_t j = 0; j < n; ++j) {
    const float s = row * cols[j];
    x[j] *= s / (1 + eps * s);
  }
}

// Returns the next mean of an eigenvalue of KL-Shampoo, at least `least`.
KOKKOS_INLINE_FUNCTION float next_eigenvalue(float rate, float scale, float least, float sample, float value) {
  const float next = value + rate * (scale * sample - value);
  return next < least ? least : next;
}
// Returns 1 / ceiling^2, below which no eigenvalue falls whose inverse root has a ceiling; 0 without one.
inline float least_eigenvalue(double ceiling) {
  return ceiling > 0 ? static_cast<float>(1 / (ceiling * ceiling)) : 0.0f;
}
// Returns x^-1/2, 0 where that is not finite.
KOKKOS_INLINE_FUNCTION float inverse_square_root(float x) {
  const float root = 1 / Kokkos::sqrt(x);
  return Kokkos::isfinite(root) ? root : 0.0f;
}

}  // namespace sestina
