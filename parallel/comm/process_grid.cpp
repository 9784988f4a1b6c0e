#include "parallel/comm/process_grid.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/error.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/comm/node_groups.hpp"

namespace sestina {

ProcessGrid make_grid(Communicator& world, int dp, int tp, int node_size, bool device) {
  SESTINA_REQUIRE(world.size() == dp * tp, "{} ranks for {} x {}", world.size(), dp, tp);
  ProcessGrid grid{dp, tp, world.rank() / tp, world.rank() % tp, nullptr, nullptr};
  const int members = node_size > 0 ? std::max(1, node_size / tp) : 0;  // of a data-parallel group on one node
  grid.dp_group = with_node_groups(world.split(grid.tp_rank, grid.dp_rank), members);
  grid.tp_group = world.split(grid.dp_rank, grid.tp_rank);
  if (device && world.size() > 1) {
    grid.dp_group = on_device(std::move(grid.dp_group));
    grid.tp_group = on_device(std::move(grid.tp_group));
  }
  return grid;
}

}  // namespace sestina
