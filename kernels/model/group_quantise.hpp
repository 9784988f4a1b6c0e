// Numbers in b = 8 or 4 bits: groups of consecutive elements share a scale and the code of zero.
//   most = 2^b - 1,  s = max(high - low, 1e-5) / most,  z = clamp(-round(low / s), 0, most),
//   code = clamp(round(w / s) + z, 0, most),  value = (code - z) s.
// Codes of 4 bits lie in pairs, the first one in the lower half of a byte; their groups are even, so that none shares a
// byte with another. The code of zero has a byte always.
// With `with_zero` low and high include 0, so that a group of one sign has values too. Without it, as published for
// POET-X and Q-GaLore, z is clamped in such a group and its codes pile up at an end. Rounding is to nearest, ties to
// even. Nothing fences.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

constexpr std::size_t group_count(std::size_t elements, std::size_t group) { return (elements + group - 1) / group; }

constexpr std::size_t code_bytes(std::size_t elements, int bits) {
  return (elements * static_cast<std::size_t>(bits) + 7) / 8;
}

// codes (code_bytes), scales and zeros (group_count) of w (n), row-major; the last group may be shorter.
template <class Exec, class A>
void group_quantise(const Exec&, Vector<const A, Exec> w, std::size_t group, bool with_zero,
                    Vector<std::uint8_t, Exec> codes, Vector<A, Exec> scales, Vector<std::uint8_t, Exec> zeros,
                    int bits = 8);

// w (n) from its codes, rounded to T.
template <class Exec, class T>
void group_dequantise(const Exec&, Vector<const std::uint8_t, Exec> codes, Vector<const Acc<T>, Exec> scales,
                      Vector<const std::uint8_t, Exec> zeros, std::size_t group, Vector<T, Exec> w, int bits = 8);

}  // namespace sestina
