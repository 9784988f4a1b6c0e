// Elementary functions that vectorise on the host and run on the device; double goes to the standard library.
// Built on fma, which -fassociative-math must not take apart.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// Returns e^x to about 1 ulp for x up to 89, as the terms of a softmax are. Results below 2^-126 become 0, e^-inf = 0,
// NaN stays NaN.
// e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln(2)/2 (Cody & Waite 1980); 2 e^r is a minimax polynomial
// (Lawson's weighted least squares, relative error 2e-9) and the factor 2^(n-1) is finite for every n up to 128.
// What is out of range is replaced at the end: of limits on x g++ makes four instructions each.
KOKKOS_FORCEINLINE_FUNCTION float exp_below_89(float x) {
  constexpr float log2_e = 0x1.715476p+0f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
  constexpr float shift = 12582912.0f + 126.0f;  // 1.5 * 2^23: the sum holds n + 126 in its low bits
  const float t = Kokkos::fma(x, log2_e, shift);
  const float n = t - shift;
  const float r = Kokkos::fma(n, -ln2_low, Kokkos::fma(n, -ln2_high, x));
  float p = 2 * 0x1.6ae68ep-10f;
  p = Kokkos::fma(p, r, 2 * 0x1.12682ep-7f);
  p = Kokkos::fma(p, r, 2 * 0x1.555826p-5f);
  p = Kokkos::fma(p, r, 2 * 0x1.555418p-3f);
  p = Kokkos::fma(p, r, 2 * 0x1.fffffcp-2f);
  p = Kokkos::fma(p, r, 2.0f);
  p = Kokkos::fma(p, r, 2.0f);
  const float value = p * Kokkos::bit_cast<float>(Kokkos::bit_cast<std::uint32_t>(t) << 23);
  return x < -87.2f ? 0.0f : value;  // n = -126 there: the factor is no power of two
}
KOKKOS_INLINE_FUNCTION double exp_below_89(double x) { return Kokkos::exp(x); }

// Returns e^x of any x: infinity where no float is as large.
KOKKOS_FORCEINLINE_FUNCTION float exp_fast(float x) {
  const float value = exp_below_89(x);
  return x > 89.0f ? Kokkos::Experimental::infinity_v<float> : value;
}
KOKKOS_INLINE_FUNCTION double exp_fast(double x) { return Kokkos::exp(x); }

// Returns the logistic function 1 / (1 + e^-x).
template <class A>
KOKKOS_FORCEINLINE_FUNCTION A sigmoid(A x) {
  return A(1) / (A(1) + exp_fast(-x));
}

// Phi(x), the share of a standard normal variable below x, and its density without the factor 1/sqrt(2 pi), e^(-x^2/2).
template <class A>
struct Normal {
  A below, density;
};
// Phi(-|x|) = e^(-x^2/2) t Q(t) with t = 1 / (1 + 0.4 |x| / sqrt(2)), the form of Abramowitz & Stegun 7.1.26 with a
// longer minimax polynomial Q: relative error 6e-8 before rounding, in the far tail too.
KOKKOS_FORCEINLINE_FUNCTION Normal<float> normal(float x) {
  const float t = 1.0f / (1.0f + 0.28284271247461901f * Kokkos::fabs(x));
  const float density = exp_fast(-0.5f * x * x);
  float q = 0x1.51f1dap-6f;
  q = Kokkos::fma(q, t, -0x1.1f5fa4p-4f);
  q = Kokkos::fma(q, t, 0x1.5802d8p-5f);
  q = Kokkos::fma(q, t, 0x1.684d88p-5f);
  q = Kokkos::fma(q, t, 0x1.46ae96p-5f);
  q = Kokkos::fma(q, t, 0x1.8c11c6p-4f);
  q = Kokkos::fma(q, t, 0x1.9d773cp-4f);
  q = Kokkos::fma(q, t, 0x1.cfc168p-4f);
  q = Kokkos::fma(q, t, 0x1.ce1952p-4f);
  const float tail = q * t * density;
  return {x < 0.0f ? tail : 1.0f - tail, density};
}
KOKKOS_INLINE_FUNCTION Normal<double> normal(double x) {
  return {0.5 * Kokkos::erfc(-0.70710678118654752440 * x), Kokkos::exp(-0.5 * x * x)};
}

}  // namespace sestina
