// Waiting for other ranks: polls, gives its core to those that work, and gives up at the run's limit. No Kokkos.
#pragma once
#include <sched.h>

#include <chrono>
#include <string>

#include "kernels/base/error.hpp"

namespace sestina {

// How long a wait for other ranks may take, and what its message says: one process, one limit.
struct WaitLimit {
  double seconds = 60;          // run.start_timeout until training begins, then run.abort_timeout
  double later = 0;             // seconds more that this rank leaves to those who should speak before it
  const char* phase = nullptr;  // of the start-up; null: over
  void (*overdue)() = nullptr;  // called when the seconds are over, before this rank speaks
};
inline WaitLimit& wait_limit() {
  static WaitLimit limit;
  return limit;
}

// What a wait that found no end says of itself: who was waited for, in what.
inline std::string lost_text(const WaitLimit& limit, const char* name, const std::string& who) {
  if (limit.phase == nullptr)
    return fmt::format("waited {:.0f} s for {} in \"{}\" (run.abort_timeout): lost or hanging", limit.seconds, who,
                       name);
  return fmt::format("waited {:.0f} s for {} in start-up, phase \"{}\" (run.start_timeout): lost or hanging",
                     limit.seconds, who, limit.phase);
}

// Polls until done(); at the limit fails with what was waited for: who() in `name`.
template <class Done, class Who>
void poll_until(const char* name, Done done, Who who) {
  using Clock = std::chrono::steady_clock;
  if (done()) return;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; !done(); ++i) {
    sched_yield();
    const WaitLimit& limit = wait_limit();
    if (i % 64 != 0) continue;
    const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
    if (waited < limit.seconds) continue;
    if (limit.overdue != nullptr) limit.overdue();
    if (waited < limit.seconds + limit.later) continue;
    fail(ExitCode::unavailable, "{}", lost_text(limit, name, who()));
  }
}

}  // namespace sestina
