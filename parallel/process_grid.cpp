#include "parallel/process_grid.hpp"

#include "kernels/error.hpp"

namespace sestina {

ProcessGrid make_grid(Communicator& world, int dp, int tp) {
  SESTINA_REQUIRE(world.size() == dp * tp, "{} ranks for {} x {}", world.size(), dp, tp);
  ProcessGrid grid{dp, tp, world.rank() / tp, world.rank() % tp, nullptr, nullptr};
  grid.dp_group = world.split(grid.tp_rank, grid.dp_rank);
  grid.tp_group = world.split(grid.dp_rank, grid.tp_rank);
  return grid;
}

}  // namespace sestina
