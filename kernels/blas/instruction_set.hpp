// The instruction set that decides the bits of a run: libraries choose their code by it when the program starts. No
// Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace sestina {

// Returns the widest set, of those that change how products are computed, that the library of products uses on this
// processor (ONEDNN_MAX_CPU_ISA may say less than it has): "amx-bf16", "avx512bf16", "avx512f", "avx2", "x86-64", or
// "other"; and the way of bf16 where that is none of the processor's own: "avx2, bf16 widened to fp32". Bits are
// promised to be equal between equal strings only.
std::string instruction_set();

// The way in which the host multiplies matrices in bf16.
enum class Bf16Way : std::uint8_t {
  tiles,         // AMX
  dot_products,  // AVX-512 with bf16
  emulated,      // by the library, without instructions for it
  widened        // stored in bf16, multiplied in fp32 (packed_product.hpp)
};

// Returns the way of this process: AMX where the processor has it (and ONEDNN_MAX_CPU_ISA allows it); else the faster
// one of a measured product (some ms, at the first call): dot products, where it has them, or the library's emulation,
// against widening. It never changes afterwards.
Bf16Way bf16_way();

// Returns "bf16 by AMX tiles", "bf16 by AVX-512 dot products", "bf16 emulated in fp32" or "bf16 widened to fp32".
constexpr std::string_view to_text(Bf16Way way) {
  switch (way) {
    case Bf16Way::tiles:
      return "bf16 by AMX tiles";
    case Bf16Way::dot_products:
      return "bf16 by AVX-512 dot products";
    case Bf16Way::emulated:
      return "bf16 emulated in fp32";
    case Bf16Way::widened:
      return "bf16 widened to fp32";
  }
  return {};
}

// Returns whether bf16 is multiplied by instructions of its own, and so faster than fp32.
inline bool has_bf16_products(Bf16Way way) { return way == Bf16Way::tiles || way == Bf16Way::dot_products; }

}  // namespace sestina
