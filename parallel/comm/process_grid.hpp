// Where a rank stands in the grid dp x tp (x pp), and its groups. Ranks are numbered tensor-parallel first, so that a
// tensor-parallel group lies on one node where it fits: rank = (stage * dp + dp_rank) * tp + tp_rank. No Kokkos.
#pragma once
#include <memory>

#include "parallel/comm/communicator.hpp"

namespace sestina {

struct ProcessGrid {
  int dp = 1, tp = 1, dp_rank = 0, tp_rank = 0;
  std::unique_ptr<Communicator> dp_group;  // same shards, other samples; ordered by dp_rank
  std::unique_ptr<Communicator> tp_group;  // same samples, other shards; ordered by tp_rank
};

// One pipeline stage; world.size() must be dp * tp. node_size: see node_groups.hpp; the data-parallel groups, which
// span nodes, work in two levels. device: the groups exchange device memory (device_communicator.hpp).
ProcessGrid make_grid(Communicator& world, int dp, int tp, int node_size, bool device);

}  // namespace sestina
