// The facts of a tensor's updates, as the rank that makes them tells them. No Kokkos.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

namespace sestina {

// Numbers of the last update that was measured. Notation: W before and W' after the update, lr and wd its rates; M = W'
// - (1 - lr wd) W is the movement without decay. An optimizer may see a tensor as several matrices M_p (heads, packed
// rotations), whose shorter sides are s_p.
//
// O_p = M_p sqrt(s_p) / ||M_p||_F has singular values whose mean square is 1. Its distance from orthogonality is
//   delta_p = ||O_p O_p^T - I||_F / sqrt(s_p) = sqrt(s_p ||M_p M_p^T||_F^2 / ||M_p||_F^4 - 1)
// (O_p^T O_p where that is the smaller one): 0 for a matrix whose singular values are equal, sqrt(s_p - 1) for one of
// rank 1. Products are in fp32, which shows as some 3e-4. The defect of the tensor is the root of the mean of
// delta_p^2, weighted by s_p. An odd packed rotation has a singular value of 0.
struct UpdateMeasure {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  double moved = unknown, weight = unknown;  // ||M||_F^2 and ||W'||_F^2, of the part that is updated here
  double defect = 0, sides = 0;              // sum of s_p delta_p^2, and of s_p; 0 and 0: an elementwise rule
  double decay = unknown;                    // lr wd
};

struct UpdateRecord {
  std::string tensor;         // HF name
  std::string rule;           // "adamw", or the kind whose optimizer was called
  std::int64_t elements = 0;  // that this rank updates
  std::int64_t calls = 0;     // of its optimizer since the start of the process; of several matrices the fewest
  bool saved = true;          // false: another rank updates the same elements, and tells of them too
  std::int64_t due = 0;       // updates that the stage has made meanwhile
  UpdateMeasure measure = {};
};

}  // namespace sestina
