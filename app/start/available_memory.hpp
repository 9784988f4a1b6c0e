// How much memory of the host the program may still take: what the machine has, what the control groups of the process
// allow (batch systems and containers set them), and what its own limits do.
#pragma once
#include <cstdint>
#include <string>

namespace sestina {

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

}  // namespace sestina
