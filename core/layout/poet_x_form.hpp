// What the plain half of POET-X (poet_x_form.cpp) and its mathematics share: order of the parts, and the options. No
// Kokkos.
#pragma once
#include "core/layout/poet_x_size.hpp"
#include "core/layout/weight_form.hpp"

namespace sestina {

// A base of values may have residuals where codes have scales.
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

// Parts of each side that no block of a rotation and no permutation leaves: tensor parallelism cuts between them.
struct ShardedSides {
  std::int64_t out = 1, in = 1;
};
ShardedSides sharded_sides(const LinearOptions&, TensorCut);

}  // namespace sestina
