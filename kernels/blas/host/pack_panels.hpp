// Packing of the operands of a product into panels, as the kernels of tile_kernel.hpp read them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/blas/host/tile_kernel.hpp"

namespace sestina::host {

// An operand as packing sees it: lines of k elements, which are rows of op_a(A) or columns of op_b(B).
struct Lines {
  const std::byte* data;
  bool is_float;         // else bf16
  std::int64_t leading;  // elements
  bool along_k;          // the next element in memory belongs to the same line; else to the next line
  std::int64_t count;
};

// Lines that are packed at a time.
inline constexpr int packed_lines = 8;
// Bytes of one element in a panel.
constexpr std::int64_t size_of(Packing packing) { return packing == Packing::wide ? 4 : 2; }

// Packs `width` lines from `line` on, `k` elements from `first` on, into a panel; width is a multiple of packed_lines.
// Lines that the operand does not have are zero, and so are elements between k and the next multiple of `step`.
void pack_panel(const Lines&, Packing, int step, std::int64_t line, std::int64_t first, std::int64_t k, int width,
                std::byte* panel);

}  // namespace sestina::host
