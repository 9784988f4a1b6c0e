// Numbers of a POET-X layer: its setting, and the scratch of its passes. No Kokkos.
#pragma once
#include <algorithm>
#include <cstddef>

namespace sestina {

struct PoetSetting {
  std::size_t block = 0;      // b, divides both sides
  double fourth = 1;          // k of the series: 1 as published, 2 for even orders
  std::size_t group = 0;      // elements that share a scale; 0: the base is kept as values
  bool zero_in_range = true;  // of the codes
};

// Pieces that a pass takes from a workspace, each begun on a multiple of its alignment.
struct PoetScratch {
  std::size_t element = 4, accumulate = 4, alignment = 256;  // bytes

  std::size_t piece(std::size_t n, std::size_t width) const {
    return (n * width + alignment - 1) / alignment * alignment;
  }
  // Of N rows through a matrix (out, in), forward or backward: two sheets of the wider side, both rotations, and what
  // makes them.
  std::size_t pass(const PoetSetting& s, std::size_t n, std::size_t out, std::size_t in) const {
    const std::size_t wide = std::max(out, in);
    return 2 * piece(n * wide, element) + piece(in * s.block, element) + piece(out * s.block, element) +
           5 * piece(wide * s.block, accumulate) + (s.group > 0 ? piece(out * in, element) : 0);
  }
  // Beside w itself.
  std::size_t merge(const PoetSetting& s, std::size_t out, std::size_t in) const {
    return piece(out * in, accumulate) + piece(in * s.block, accumulate) + piece(out * s.block, accumulate) +
           5 * piece(std::max(out, in) * s.block, accumulate) + (s.group > 0 ? piece(out * in, element) : 0);
  }
};

}  // namespace sestina
