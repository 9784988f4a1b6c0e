// How much memory the program may still take, and whether the run will fit: compared before anything large is
// allocated.
#pragma once
#include <cstdint>
#include <string>

#include "core/deck/options.hpp"
#include "core/layout/model_size.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/plan/plan_memory.hpp"

namespace sestina {

// How much memory of the host the program may still take: what the machine has, what the control groups of the process
// allow (batch systems and containers set them), and what its own limits do.

// What one process may take of a memory, and how messages name who has no more.
struct MemoryShare {
  std::string name = "this machine";
  std::uint64_t bytes = 0;  // 0: unknown, everything fits
};

// Where the system says so; tests have folders of their own.
struct MemoryPlaces {
  std::string proc = "/proc", groups = "/sys/fs/cgroup";
};

// Bytes that can be given without swapping, for each of so many processes of this machine that share them. Of control
// groups version 2 (memory.max) and 1 (memory.limit_in_bytes), and of all their parents, less what is in use there and
// is no copy of a file; of the process RLIMIT_AS and RLIMIT_DATA (ulimit -v, -d) less what it has, and less what
// libraries and so many threads to come take of addresses.
MemoryShare available_memory(int sharers = 1, int threads = 1, const MemoryPlaces& = {});

// Of these what the limits of the process leave it; 0 bytes: it has none.
MemoryShare process_memory(int threads = 1, const MemoryPlaces& = {});

inline std::uint64_t available_memory_bytes() { return available_memory().bytes; }

// Will the run fit? Compared before anything large is allocated.
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
