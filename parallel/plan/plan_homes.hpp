// Matrices under tensor parallelism: which rank updates the whole matrix, and in what portions they travel. No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

#include "core/layout/plan.hpp"

namespace sestina {

// Hosts were filled as if they were alike; now groups of tp of them become data-parallel ranks with even bytes.
// Returns rank = dp_rank * tp + tp_rank by host.
std::vector<int> group_hosts(const std::vector<std::int64_t>& bytes, int dp, int tp);

struct HostedMatrix {
  int spec = 0, host = 0;
  std::int64_t cost = 0;
  std::int64_t bytes = 0;  // of the whole gradient
};

// The micro-groups of one data-parallel rank, in order: matrices by the time at which their host comes to them when it
// takes its dearest first, so that the loads inside a group are as even as the plan's. A group is full when the whole
// gradients at one host would exceed `most_bytes`; that never goes below the largest matrix, which alone in a group
// would idle all other hosts.
std::vector<MicroGroup> micro_groups(std::vector<HostedMatrix>, int tp, std::int64_t most_bytes);

}  // namespace sestina
