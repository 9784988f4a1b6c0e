// Weights in 8 bits: groups of consecutive elements share a scale and the code of zero.
//   s = max(high - low, 1e-5) / 255,  z = clamp(-round(low / s), 0, 255),  code = clamp(round(w / s) + z, 0, 255),
//   value = (code - z) s.
// With `with_zero` low and high include 0, so that a group of one sign has values too. Without it, as published for
// POET-X and Q-GaLore, z is clamped in such a group and its codes pile up at an end. Rounding is to nearest, ties to
// even. Nothing fences.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

constexpr std::size_t group_count(std::size_t elements, std::size_t group) { return (elements + group - 1) / group; }

// codes (n), scales and zeros (group_count) of w (n), row-major; the last group may be shorter.
template <class Exec, class A>
void group_quantise(const Exec&, Vector<const A, Exec> w, std::size_t group, bool with_zero,
                    Vector<std::uint8_t, Exec> codes, Vector<A, Exec> scales, Vector<std::uint8_t, Exec> zeros);

// w (n) from its codes, rounded to T.
template <class Exec, class T>
void group_dequantise(const Exec&, Vector<const std::uint8_t, Exec> codes, Vector<const Acc<T>, Exec> scales,
                      Vector<const std::uint8_t, Exec> zeros, std::size_t group, Vector<T, Exec> w);

}  // namespace sestina
