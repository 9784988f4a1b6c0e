// Waiting for other ranks: polls, gives its core to those that work, and gives up at the run's limit. No Kokkos.
#pragma once
#include <sched.h>

#include <chrono>
#include <string>

#include "kernels/error.hpp"

namespace sestina {

// Seconds that a wait for other ranks may take (run.abort_timeout): one process, one limit.
inline double& wait_limit() {
  static double seconds = 60;
  return seconds;
}

// Polls until done(); at the limit fails with what was waited for: who() in `name`.
template <class Done, class Who>
void poll_until(const char* name, Done done, Who who) {
  using Clock = std::chrono::steady_clock;
  if (done()) return;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; !done(); ++i) {
    sched_yield();
    if (i % 64 != 0 || std::chrono::duration<double>(Clock::now() - begin).count() < wait_limit()) continue;
    fail(ExitCode::unavailable, "waited {:.0f} s for {} in \"{}\" (run.abort_timeout): lost, or hanging", wait_limit(),
         who(), name);
  }
}

}  // namespace sestina
