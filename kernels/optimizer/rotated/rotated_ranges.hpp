// The loops of Adam in a rotated basis over plain pointers that do not overlap, so that the compiler vectorises them:
// those of one matrix (rotated_adam.cpp) and of many (rotated_batch.cpp) have the same bits.
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

}  // namespace sestina
