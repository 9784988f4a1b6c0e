// The memory that the program may still take, compared with what the run needs before anything large is allocated.
#pragma once
#include <cstdint>
#include <string>

#include "core/deck/options.hpp"
#include "core/layout/model_size.hpp"
#include "parallel/exchange/rank_memory.hpp"
#include "parallel/plan/make_plan.hpp"

namespace sestina {

// The program may still take as much host memory as the machine has, as the control groups of the process allow (batch
// systems and containers set them), and as its own limits allow.

// The bytes that one process may take of a memory, and the name in messages of what sets this limit.
struct MemoryShare {
  std::string name = "this machine";
  std::uint64_t bytes = 0;  // 0: unknown, everything fits
};

// The folders in which the system says so; tests have folders of their own.
struct MemoryPlaces {
  std::string proc = "/proc", groups = "/sys/fs/cgroup";
};

// Returns the least of the bytes that can be given without swapping, for each of `sharers` processes that share this
// machine. Counted are the limits of control groups of version 2 (memory.max) and 1 (memory.limit_in_bytes), and of all
// their parents, less what is in use there and is no copy of a file; and of the process RLIMIT_AS and RLIMIT_DATA
// (ulimit -v, -d), less what it has, and less the addresses that libraries and `threads` threads will take.
MemoryShare available_memory(int sharers = 1, int threads = 1, const MemoryPlaces& = {});

// Returns only what the limits of the process leave it; 0 bytes: it has no limit.
MemoryShare process_memory(int threads = 1, const MemoryPlaces& = {});

inline std::uint64_t available_memory_bytes() { return available_memory().bytes; }

// The need of a run is compared with this before anything large is allocated.
inline double gb(std::uint64_t bytes) { return static_cast<double>(bytes) * 1e-9; }  // the unit of messages

// Throws Error(unavailable) with the numbers when a rank does not fit. A device with its own memory holds all but the
// copy that a checkpoint is written from, and what refresh workers take.
void require_memory(const RankMemory&, const MemoryShare& host, const MemoryShare& device);

// Returns the threads of one of `sharers` ranks on this machine, as plans count their scratch: 0 where it computes on a
// device.
int planned_threads(const Options&, int sharers = 1);

// The plan of a run, and what this rank needs for it.
struct PlannedRun {
  Plan plan;
  RankMemory memory;
};
// Plans a run and calls require_memory for this rank, with its share of what this machine and its devices have.
PlannedRun plan_that_fits(const Options&, int rank = 0, int ranks = 1, int node_ranks = 1);

}  // namespace sestina
