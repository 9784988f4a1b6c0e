// How far the transfer of one chunk has come, and what is done about a short or failed one. One way for all that move
// chunks. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "io/store/retry.hpp"

namespace sestina {

struct ChunkProgress {
  enum class Next { done, more, failed };

  std::size_t moved = 0;      // bytes; whole blocks until it is done
  int again = 0, failed = 0;  // in a row without progress; errors of the disk in the same way

  // What follows from `result` of the engine, bytes or -errno: a transfer that stops early goes on from the last whole
  // block (more: submit what is after `moved`), one that failed for a passing reason is made again after a pause, so
  // is one with EIO a few times. needed: bytes with which it is done. patience: bounds passing errors by its time,
  // null: by their number. failed: `why` says it.
  Next take(std::int64_t result, std::size_t needed, std::string& why, Retry* patience = nullptr);
};

}  // namespace sestina
