// Watches over the start of MPI, which waits for all ranks without a limit of its own and polls nothing. No Kokkos.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>

#include "kernels/base/exit_handler.hpp"
#include "kernels/base/quiet_threads.hpp"
#include "parallel/comm/poll.hpp"

namespace sestina {

// While it lives: leaves the process (kernels/base/exit_handler.hpp) when the start takes longer than `timeout`
// seconds, or `patience` seconds after give_up() began to return an exit code other than 0: usually the ranks meet
// meanwhile, and agree on it.
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
