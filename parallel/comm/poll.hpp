// How a rank waits for other ranks: it polls, gives its core to those that work, and gives up at the run's limit. No
// Kokkos.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/base/error.hpp"
#include "kernels/base/exit_handler.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {

// The limit of a wait for other ranks, and the words of its message: a process has one limit.
struct WaitLimit {
  double seconds = 60;          // run.start_timeout until training begins, then run.abort_timeout
  double later = 0;             // further seconds, which this rank leaves to those who should speak before it
  bool shares_cores = false;    // this node has more ranks than cores: whoever is waited for may need this one's
  const char* phase = nullptr;  // the phase of the start-up; null: start-up is over
  void (*overdue)() = nullptr;  // called when the seconds are over, before this rank speaks
};
inline WaitLimit& wait_limit() {
  static WaitLimit limit;
  return limit;
}

// The message of a wait that found no end: who was waited for, and in what.
inline std::string lost_text(const WaitLimit& limit, const char* name, const std::string& who) {
  if (limit.phase == nullptr)
    return fmt::format("waited {:.0f} s for {} in \"{}\" (run.abort_timeout): lost or hanging", limit.seconds, who,
                       name);
  return fmt::format("waited {:.0f} s for {} in start-up, phase \"{}\" (run.start_timeout): lost or hanging",
                     limit.seconds, who, limit.phase);
}

// The pause between two polls of a wait that has lasted so long, both in seconds. At first there is none: ranks with
// equal work are late by less. Then it is a part of the wait so far, so that the wait ends late by no more and costs
// next to no core. A rank that shares its core pauses sooner. The rank sleeps instead of calling sched_yield: on Linux
// 6.18 a process that yields on a core of its own keeps others off that core for minutes.
inline double poll_pause(double waited, bool shares_cores) {
  return waited < (shares_cores ? 10e-6 : 500e-6) ? 0 : std::min(waited / 32, 1e-3);
}

// Polls until done(); at the limit it fails with what was waited for: who() in `name`.
template <class Done, class Who>
void poll_until(const char* name, Done done, Who who) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  if (done()) return;
  const Clock::time_point begin = Clock::now();
  while (!done()) {
    const double waited = Seconds(Clock::now() - begin).count();
    const WaitLimit& limit = wait_limit();
    if (const double pause = poll_pause(waited, limit.shares_cores); pause > 0)
      std::this_thread::sleep_for(Seconds(pause));
    if (waited < limit.seconds) continue;
    if (limit.overdue != nullptr) limit.overdue();
    if (waited < limit.seconds + limit.later) continue;
    fail(ExitCode::unavailable, "{}", lost_text(limit, name, who()));
  }
}

// Watches over the start of MPI, which waits for all ranks without a limit of its own and polls nothing.

// While it lives, it leaves the process (kernels/base/exit_handler.hpp) when the start takes longer than `timeout`
// seconds, or `patience` seconds after give_up() began to return an exit code other than 0: usually the ranks meet
// meanwhile, and agree on that code.
class StartGuard {
 public:
  StartGuard(double timeout, const std::function<int()>& give_up, double patience = 5)
      : thread_(quiet_thread([=, this] { watch(timeout, give_up, patience); })) {}
  ~StartGuard() {
    {
      const std::lock_guard lock(mutex_);
      started_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

 private:
  void watch(double timeout, const std::function<int()>& give_up, double patience) {
    constexpr std::chrono::milliseconds interval(50);
    double waited = 0, since_vote = 0;
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, interval, [this] { return started_; })) {
      waited += std::chrono::duration<double>(interval).count();
      const int code = give_up ? give_up() : 0;
      if (code != 0 && (since_vote += std::chrono::duration<double>(interval).count()) > patience)
        return leave_process(code);
      if (waited < timeout + wait_limit().later) continue;
      std::fprintf(stderr, "sestina: error: %s\n", lost_text(wait_limit(), "", "the other ranks").c_str());
      return leave_process(static_cast<int>(ExitCode::unavailable));
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool started_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace sestina
