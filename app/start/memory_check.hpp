// Will the run fit? Compared before anything large is allocated.
#pragma once
#include <cstdint>

#include "app/start/available_memory.hpp"
#include "core/deck/options.hpp"
#include "core/layout/model_size.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/plan/plan_memory.hpp"

namespace sestina {

inline double gb(std::uint64_t bytes) { return static_cast<double>(bytes) * 1e-9; }  // as messages say it

// Error(unavailable) with the numbers when a rank does not fit. A device with its own memory holds all but the copy
// that a checkpoint is written from, and what refresh workers take.
void require_memory(const RankMemory&, const MemoryShare& host, const MemoryShare& device);

// Threads of one rank of so many on this machine, as plans count their scratch: 0 where it computes on a device.
int planned_threads(const Options&, int sharers = 1);

// The plan of a run, and what this rank needs for it.
struct PlannedRun {
  Plan plan;
  RankMemory memory;
};
// require_memory for this rank of the run, with its share of what this machine and its devices have.
PlannedRun plan_that_fits(const Options&, int rank = 0, int ranks = 1, int node_ranks = 1);

}  // namespace sestina
