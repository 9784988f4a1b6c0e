// bfloat16 storage, 2 bytes on every space (Kokkos' own falls back to 4 bytes in host builds).
// Bit-compatible with __nv_bfloat16 and oneDNN's bf16, so pointers may be reinterpreted at vendor calls.
#pragma once
#include <Kokkos_Core.hpp>
#include <bit>
#include <cstdint>

namespace sestina {

struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  // Rounds to nearest, ties to even; NaN stays NaN. Branch-free, so that loops over it vectorise.
  KOKKOS_INLINE_FUNCTION explicit bf16(float value) {
    const std::uint32_t u = Kokkos::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = (u >> 16) | 0x40u;
    bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
  KOKKOS_INLINE_FUNCTION explicit bf16(double value) : bf16(static_cast<float>(value)) {}
  KOKKOS_INLINE_FUNCTION operator float() const {
    return Kokkos::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};
static_assert(sizeof(bf16) == 2);

}  // namespace sestina
