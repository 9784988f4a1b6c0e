#include "parallel/process_grid.hpp"

#include <utility>

#include "kernels/error.hpp"
#include "parallel/device_communicator.hpp"

namespace sestina {

ProcessGrid make_grid(Communicator& world, int dp, int tp, bool device) {
  SESTINA_REQUIRE(world.size() == dp * tp, "{} ranks for {} x {}", world.size(), dp, tp);
  ProcessGrid grid{dp, tp, world.rank() / tp, world.rank() % tp, nullptr, nullptr};
  grid.dp_group = world.split(grid.tp_rank, grid.dp_rank);
  grid.tp_group = world.split(grid.dp_rank, grid.tp_rank);
  if (device && world.size() > 1) {
    grid.dp_group = on_device(std::move(grid.dp_group));
    grid.tp_group = on_device(std::move(grid.tp_group));
  }
  return grid;
}

}  // namespace sestina
