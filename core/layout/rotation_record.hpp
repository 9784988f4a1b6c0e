// How far a weight between rotations (POET-X) has been turned since its last merge, and what that did to its singular
// values, as the rank that measures it tells it. No Kokkos.
#pragma once
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include "core/layout/weight_form.hpp"

namespace sestina {

// Returns the larger of two numbers; a NaN stays.
inline double larger_or_nan(double a, double b) { return std::isnan(a) || a > b ? a : b; }

// Numbers of a weight as passes see it just before the update's merge, if there is one.
//
// Blocks are G = I + 2 Q + 2 Q^2 + 2 Q^3 + k Q^4 (kernels/model/block_rotations.hpp), a truncated Neumann series of the
// Cayley transform (I + Q)(I - Q)^-1 (POET-X, Qiu et al. 2026, section 3.3), which converges for ||Q||_2 < 1 and whose
// first four terms are close to orthogonal only where ||Q||_2 is well below it: G^T G = (I - Q^4)^2 for k = 1.
//
// The singular values are those of the weight, and where it is trained in shards (model.linear.shards) those of each:
// rotations and permutations stay in their shards, so that is what they keep.
struct RotationMeasure {
  double largest_q = 0;       // ||Q||_2 of the block that has most; from above, by a factor of at most b^(1/1024)
  double defect = 0;          // ||G^T G - I||_F / sqrt(b) of the worst block, as a merge takes it (in sums)
  double applied_defect = 0;  // the same of blocks that are rounded to the numbers of the passes
  double sigma_max = 0, sigma_min = std::numeric_limits<double>::infinity();
  double squares = 0, count = 0;  // sum of the squares of the singular values, and how many there are

  void add(const RotationMeasure& other) {
    largest_q = larger_or_nan(largest_q, other.largest_q);
    defect = larger_or_nan(defect, other.defect);
    applied_defect = larger_or_nan(applied_defect, other.applied_defect);
    sigma_max = larger_or_nan(sigma_max, other.sigma_max);
    sigma_min = -larger_or_nan(-sigma_min, -other.sigma_min);
    squares += other.squares;
    count += other.count;
  }
};

struct RotationRecord {
  std::string weight;  // HF name of the dense weight
  RotationMeasure measure = {};
};

// A merge of a layer that came early (model.linear.merge_bound), and the weight of the layer that was turned furthest.
struct EarlyMerge {
  int layer = 0;
  std::string weight;    // HF name of the dense weight
  double largest_q = 0;  // its ||Q||_2, as in RotationMeasure
};

// What a look at rotations is for: their norms alone, or all that a RotationMeasure has.
enum class RotationLook { norm, all };

// Returns the bytes on a host of the scratch in which a weight (out, in) of this rank is looked at, 0 for one in
// another form.
std::size_t host_rotation_scratch(const LinearOptions&, const FormShape&, TensorCut, RotationLook);

}  // namespace sestina
