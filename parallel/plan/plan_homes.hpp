// Matrices under tensor parallelism: which rank updates the whole matrix, and in what portions they travel. No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

#include "core/layout/plan.hpp"

namespace sestina {

// Homes were filled as if they were equal; now groups of tp of them become data-parallel ranks with even bytes.
// Returns rank = dp_rank * tp + tp_rank by home.
std::vector<int> group_homes(const std::vector<std::int64_t>& bytes, int dp, int tp);

struct HomedMatrix {
  int spec = 0, home = 0;
  std::int64_t cost = 0;
  std::int64_t bytes = 0;  // of the whole gradient
};

// The micro-groups of one data-parallel rank, in order: matrices by the time at which their home comes to them when it
// takes its dearest first, so that the loads inside a group are as even as the plan's. A group is full when the whole
// gradients at one home would exceed `most_bytes`; that never goes below the largest matrix, which alone in a group
// would idle all other homes. Where homes have several matrices and these are large enough to hide an exchange, there
// are a few groups however much would be allowed: the exchange of one hides under the work on another.
std::vector<MicroGroup> micro_groups(std::vector<HomedMatrix>, int tp, std::int64_t most_bytes);

}  // namespace sestina
