// The bits of memory as they are, whatever they mean: digests that tell whether two ranks hold the same, and flips on
// purpose, with which what looks for silent corruption is tried.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// Returns a 64-bit number of which every bit depends on every bit of x; no two x share one. It is the last step of
// SplitMix64 (Steele, Lea, Flood 2014).
KOKKOS_INLINE_FUNCTION std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline constexpr std::uint64_t golden_ratio = 0x9e3779b97f4a7c15u;  // times 2^64

// Returns number i, from 0, of the SplitMix64 generator that begins at `seed`.
KOKKOS_INLINE_FUNCTION std::uint64_t split_mix(std::uint64_t seed, std::uint64_t i) {
  return mixed(seed + (i + 1) * golden_ratio);
}

// Sets digest (1) to the sum of mixed(word i + (i + 1) g) modulo 2^64 over words of `width` bytes (1, 2 or 4, which
// divides `bytes`), g the golden ratio times 2^64. The sum has no order, so no number of threads changes it. Memory
// that differs in one word has another digest for certain, because a term differs for each value of its word; otherwise
// digests are equal by chance once in 2^64. Does not fence.
template <class Exec>
void digest_bits(const Exec&, const void* memory, std::size_t bytes, std::size_t width,
                 Vector<std::uint64_t, Exec> digest);

// The same of rows of `row` bytes that begin `stride` bytes apart, both multiples of the width, as if they lay one
// after the other without a gap.
template <class Exec>
void digest_rows(const Exec&, const void* memory, std::size_t rows, std::size_t row, std::size_t stride,
                 std::size_t width, Vector<std::uint64_t, Exec> digest);

// Flips so many bits of one word of `width` bytes (1, 2 or 4, which divides `bytes`): which word and which bits follows
// from the place. Does not fence.
template <class Exec>
void flip_bits(const Exec&, void* memory, std::size_t bytes, std::size_t width, std::uint64_t place, int bits);

}  // namespace sestina
