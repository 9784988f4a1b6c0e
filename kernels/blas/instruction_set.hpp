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
  widened        // stored in bf16, multiplied in fp32 (packed_product.hpp)
};

// Returns the way of this processor, as far as ONEDNN_MAX_CPU_ISA allows it: AMX where it has it; dot products where
// they are faster than fp32, which is so on AMD's processors (twice its speed on Zen 4) and not on Intel's (half of it,
// on those with AMX too); else widening, which is faster than oneDNN's emulation wherever both exist. Nothing is
// measured: the way decides bits, and these must not depend on what else a machine does. Numbers:
// regression/reports/processors.md.
Bf16Way bf16_way();

// Returns "bf16 by AMX tiles", "bf16 by AVX-512 dot products" or "bf16 widened to fp32".
constexpr std::string_view to_text(Bf16Way way) {
  switch (way) {
    case Bf16Way::tiles:
      return "bf16 by AMX tiles";
    case Bf16Way::dot_products:
      return "bf16 by AVX-512 dot products";
    case Bf16Way::widened:
      return "bf16 widened to fp32";
  }
  return {};
}

// Returns whether bf16 is multiplied by instructions of its own, and so faster than fp32.
inline bool has_bf16_products(Bf16Way way) { return way == Bf16Way::tiles || way == Bf16Way::dot_products; }

}  // namespace sestina
