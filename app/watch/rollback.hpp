// A rollback of a run (run.on_spike = "rollback"): it ends where it is and goes on from a checkpoint, as a resume does,
// but after the samples that came since then. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sestina {

struct SampleRange {
  std::uint64_t first = 0, last = 0;
};

struct Rollback {
  std::string checkpoint;
  std::int64_t step = 0;              // the checkpoint's updates
  std::vector<SampleRange> left_out;  // by all rollbacks of the run; the run goes on after the last range
};

}  // namespace sestina
