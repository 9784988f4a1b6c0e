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
  int bits = 8;               // of a code
  bool zero_in_range = true;  // the range of the codes includes 0
  bool residual = false;      // a byte next to each value or code of the base keeps what these leave of a merge
  std::size_t most = 0;       // blocks of a side, at most; 0: as many as it has room for

  // Returns the rows, or columns, of a side of n that blocks may hold.
  std::size_t turned(std::size_t n) const { return most > 0 ? std::min(n, most * block) : n; }
  // Returns those that a packed rotation of so many elements turns: b for each b (b - 1) / 2.
  std::size_t turned_by(std::size_t elements) const { return block > 1 ? 2 * elements / (block - 1) : 0; }
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
  // rotations, and what makes both at once.
  std::size_t pass(const PoetOptions& s, std::size_t n, std::size_t out, std::size_t in) const {
    const std::size_t wide = std::max(out, in);
    return 2 * piece(n * wide, element) + piece(s.turned(in) * s.block, element) +
           piece(s.turned(out) * s.block, element) + 5 * piece((s.turned(out) + s.turned(in)) * s.block, accumulate) +
           (s.group > 0 ? piece(out * in, element) : 0);
  }
  // Returns the bytes of a merge: a copy of the values as they were, or all sums before they are coded; two tiles of
  // rows, both rotations and what makes them, and index maps. It is enough to make a dense weight, and to take one, as
  // well.
  std::size_t merge(const PoetOptions& s, std::size_t out, std::size_t in) const {
    const std::size_t base = s.group > 0  ? piece(out * in, accumulate)
                             : s.residual ? piece(out * in, element) + piece(out * in, 1)
                                          : piece(out * in, element);
    return base + 2 * piece(s.tile_rows(out, in) * in, accumulate) + piece(s.turned(in) * s.block, accumulate) +
           piece(s.turned(out) * s.block, accumulate) + 5 * piece(s.turned(std::max(out, in)) * s.block, accumulate) +
           piece(in, index) + piece(out, index);
  }
};

// The order of the parts. A base of values may have residuals where codes have scales, and codes behind these.
enum PoetPart {
  poet_base,
  poet_perm_in,
  poet_perm_out,
  poet_rotation_in,
  poet_rotation_out,
  poet_scales,
  poet_zeros,
  poet_residual = poet_scales,
  poet_code_residual = poet_zeros + 1
};

PoetOptions poet_options(const LinearOptions&);

// Parts of each side; no block of a rotation and no permutation leaves its part, so tensor parallelism cuts between
// them.
struct ShardedSides {
  std::int64_t out = 1, in = 1;
};
ShardedSides sharded_sides(const LinearOptions&, TensorCut);

// Returns the rows, or columns, of a side of n in so many parts that its rotation turns: all, or those of one block in
// each part (model.linear.sampling = "fully-stochastic"). These are the first ones of the part as permuted, so that the
// permutations of a merge draw them.
std::int64_t turned_of(const LinearOptions&, std::int64_t n, std::int64_t parts);

}  // namespace sestina
