// The grid of a group of numbers in b bits: value = (code - zero) scale.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

template <class A, int bits = 8>
struct CodeGrid {
  static constexpr int most = (1 << bits) - 1;

  A scale = 0;
  std::uint8_t zero = 0;

  // s = max(high - low, 1e-5) / most,  z = clamp(-round(low / s), 0, most); ties to even.
  static KOKKOS_INLINE_FUNCTION CodeGrid of(A low, A high) {
    constexpr double least_range = 1e-5;
    const A scale = Kokkos::fmax(high - low, A(least_range)) / A(most);
    return {scale, code(-Kokkos::nearbyint(low / scale))};
  }
  static KOKKOS_INLINE_FUNCTION std::uint8_t code(A x) {
    const A above = x > A(0) ? x : A(0);  // no fmin, fmax: what they make of NaN keeps loops from vector registers
    return static_cast<std::uint8_t>(static_cast<std::int32_t>(above < A(most) ? above : A(most)));
  }
  KOKKOS_INLINE_FUNCTION A value(int c) const { return A(c - zero) * scale; }
  KOKKOS_INLINE_FUNCTION A low() const { return value(0); }
  KOKKOS_INLINE_FUNCTION A high() const { return value(most); }
  KOKKOS_INLINE_FUNCTION A place(A x) const { return x / scale + A(zero); }  // between codes
  KOKKOS_INLINE_FUNCTION std::uint8_t nearest(A x) const { return code(Kokkos::nearbyint(x / scale) + A(zero)); }
};

}  // namespace sestina
