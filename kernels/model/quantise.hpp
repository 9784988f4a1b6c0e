// Numbers in few bits: groups that share a scale and the code of zero, rows that carry theirs with them, and the byte
// that rounding to bf16 leaves over.
#pragma once
#include "kernels/base/dtype.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

// The grid of a group of numbers in b bits: value = (code - zero) scale.

template <class A, int bits = 8>
struct CodeGrid {
  static constexpr int most = (1 << bits) - 1;

  A scale = 0;
  std::uint8_t zero = 0;

  // Returns the grid of [low, high] with s = max(high - low, 1e-5) / most, z = clamp(-round(low / s), 0, most); ties to
  // even.
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
  KOKKOS_INLINE_FUNCTION A place(A x) const { return x / scale + A(zero); }  // a real number, between codes
  KOKKOS_INLINE_FUNCTION std::uint8_t nearest(A x) const { return code(Kokkos::nearbyint(x / scale) + A(zero)); }
};

// Numbers w in b = 8 or 4 bits: groups of consecutive elements share a scale s and the code of zero z.
//   most = 2^b - 1,  s = max(high - low, 1e-5) / most,  z = clamp(-round(low / s), 0, most),
//   code = clamp(round(w / s) + z, 0, most),  value = (code - z) s.
// Codes of 4 bits lie in pairs, the first one in the lower half of a byte; their groups are even, so that none shares a
// byte with another. The code of zero has a byte always.
// With `with_zero` low and high include 0, so that a group of one sign has values too. Without it, as published for
// POET-X and Q-GaLore, z is clamped in such a group and its codes pile up at an end. Rounding is to nearest, ties to
// even. Nothing fences.
constexpr std::size_t group_count(std::size_t elements, std::size_t group) { return (elements + group - 1) / group; }

constexpr std::size_t code_bytes(std::size_t elements, int bits) {
  return (elements * static_cast<std::size_t>(bits) + 7) / 8;
}

// A residual is what a code leaves over, w / s - (code - z), in a byte for each number: in 128ths, signed, at most 127
// of them, which holds a rounding of the code and one of the code of zero.
template <class Exec, class A>
struct GroupCodes {
  std::size_t group = 1;
  int bits = 8;
  Vector<std::uint8_t, Exec> codes, zeros;    // (code_bytes), (group_count)
  Vector<A, Exec> scales;                     // (group_count)
  Vector<std::uint8_t, Exec> residuals = {};  // (n); empty: none are kept
};

// Quantises w (n), row-major; the last group may be shorter.
template <class Exec, class A>
void group_quantise(const Exec&, Vector<const A, Exec> w, bool with_zero, const GroupCodes<Exec, A>&);

// Sets w (n) from its codes, rounded to T.
template <class Exec, class T>
void group_dequantise(const Exec&, const GroupCodes<Exec, Acc<T>>&, Vector<T, Exec> w);

// Sets x (n) to what codes and residuals, where they are kept, stand for together, from number `first` on.
template <class Exec, class A>
void widen_codes(const Exec&, const GroupCodes<Exec, A>&, std::size_t first, Vector<A, Exec> x);

// A matrix in 8 bits whose rows carry their own scales, so that rows travel between ranks and lie in checkpoints as
// bytes. A row (coded_row_bytes of kernels/base/dtype.hpp) holds the scales of its groups of columns, their codes of
// zero, and the codes. The last group of a row may be shorter; no group goes on in the next row. The range of a group
// always includes 0.
struct CodedRow {
  float* scales;        // (groups)
  std::uint8_t* zeros;  // (groups)
  std::uint8_t* codes;  // (cols)
};

// The rows of such a matrix, in memory of a space that the call knows; the memory begins on a multiple of four bytes.
struct CodedRows {
  std::uint8_t* data = nullptr;
  std::size_t rows = 0, cols = 0, group = 1;

  KOKKOS_INLINE_FUNCTION std::size_t groups() const { return (cols + group - 1) / group; }
  KOKKOS_INLINE_FUNCTION CodedRow row(std::size_t i) const {
    const std::size_t count = groups(), bytes = (count * (sizeof(float) + 1) + cols + 3) / 4 * 4;
    std::uint8_t* const begin = data + i * bytes;
    return {reinterpret_cast<float*>(begin), begin + count * sizeof(float), begin + count * (sizeof(float) + 1)};
  }
};

// Codes w (rows, cols), rounded to nearest. Nothing fences, here and below.
template <class Exec, class A>
void encode_rows(const Exec&, Matrix<const A, Exec> w, const CodedRows&);

// Sets w (rows, cols) from its codes, rounded to T.
template <class Exec, class T>
void decode_rows(const Exec&, const CodedRows&, Matrix<T, Exec> w);

// The residual is what rounding to bf16 leaves over, in a byte next to it: bits 8 to 15 of the fp32 number, as a signed
// distance from the bf16 number that it rounds to. Both together are off by 2^-16 of the number at most, bf16 alone by
// 2^-8. A byte of zero is the bf16 number itself. Nothing fences.

// Sets x to the numbers that values and residual stand for together.
template <class Exec>
void widen_with_residual(const Exec&, Vector<const bf16, Exec> values, Vector<const std::uint8_t, Exec> residual,
                         Vector<float, Exec> x);

// Puts element (i, j) of x to (rows[i], cols[j]) of values, rounded, and the rest to the same place of residual.
template <class Exec>
void put_with_residual(const Exec&, Matrix<const float, Exec> x, Vector<const std::int32_t, Exec> rows,
                       Vector<const std::int32_t, Exec> cols, Matrix<bf16, Exec> values,
                       Matrix<std::uint8_t, Exec> residual);

}  // namespace sestina
