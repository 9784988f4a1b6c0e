// The part that the plain half of POET-X (poet_x_form.cpp) and its mathematics share: the order of the parts, and the
// options. No Kokkos.
#pragma once
#include <algorithm>
#include <cstddef>

#include "core/layout/weight_form.hpp"

namespace sestina {

// Numbers of a POET-X layer: its options, and the scratch of its passes.
struct PoetOptions {
  std::size_t block = 0;      // b, divides both sides
  double fourth = 1;          // k of the series: 1 as published, 2 for even orders
  std::size_t group = 0;      // elements that share a scale; 0: the base is kept as values
  bool zero_in_range = true;  // the range of the codes includes 0
  bool residual = false;      // a byte next to each value of the base keeps what bf16 leaves of a merge

  // Returns the rows that a merge rotates at a time: whole blocks, and few elements compared with a large weight.
  std::size_t tile_rows(std::size_t out, std::size_t in) const {
    constexpr std::size_t elements = std::size_t{1} << 20;
    return std::min(out, std::max<std::size_t>(1, elements / (in * block)) * block);
  }
};

// Bytes of the pieces that a pass takes from a workspace, each begun on a multiple of its alignment.
struct PoetScratch {
  std::size_t element = 4, accumulate = 4, alignment = 256;  // bytes
  static constexpr std::size_t index = 4;

  std::size_t piece(std::size_t n, std::size_t width) const {
    return (n * width + alignment - 1) / alignment * alignment;
  }
  // Returns the bytes for n rows through a matrix (out, in), forward or backward: two sheets of the wider side, both
  // rotations, and what makes them.
  std::size_t pass(const PoetOptions& s, std::size_t n, std::size_t out, std::size_t in) const {
    const std::size_t wide = std::max(out, in);
    return 2 * piece(n * wide, element) + piece(in * s.block, element) + piece(out * s.block, element) +
           5 * piece(wide * s.block, accumulate) + (s.group > 0 ? piece(out * in, element) : 0);
  }
  // Returns the bytes of a merge: a copy of the base as it was, two tiles of rows, both rotations and what makes them,
  // index maps, and for codes all sums before they are coded. It is enough to make a dense weight, and to take one, as
  // well.
  std::size_t merge(const PoetOptions& s, std::size_t out, std::size_t in) const {
    return piece(out * in, element) + (s.residual ? piece(out * in, 1) : 0) +
           (s.group > 0 ? piece(out * in, accumulate) : 0) + 2 * piece(s.tile_rows(out, in) * in, accumulate) +
           piece(in * s.block, accumulate) + piece(out * s.block, accumulate) +
           5 * piece(std::max(out, in) * s.block, accumulate) + piece(in, index) + piece(out, index);
  }
};

// The order of the parts. A base of values may have residuals where codes have scales.
enum PoetPart {
  poet_base,
  poet_perm_in,
  poet_perm_out,
  poet_rotation_in,
  poet_rotation_out,
  poet_scales,
  poet_zeros,
  poet_residual = poet_scales
};

PoetOptions poet_options(const LinearOptions&);

// Parts of each side; no block of a rotation and no permutation leaves its part, so tensor parallelism cuts between
// them.
struct ShardedSides {
  std::int64_t out = 1, in = 1;
};
ShardedSides sharded_sides(const LinearOptions&, TensorCut);

}  // namespace sestina
