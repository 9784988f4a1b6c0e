// The seconds of one step on this rank, by phase. No Kokkos.
#pragma once
#include <algorithm>
#include <array>

#include "kernels/base/seconds_spent.hpp"
#include "parallel/plan/rank_report.hpp"

namespace sestina {

// Adds up the seconds of each phase of one step: what has passed since the last call belongs to the phase that ends.
class PhaseClock {
 public:
  void start() {
    seconds_.fill(0);
    begin_ = last_ = now_seconds();
  }
  void end(Phase phase) {
    const double now = now_seconds();
    seconds_[static_cast<std::size_t>(phase)] += now - last_;
    last_ = now;
  }
  // Books seconds of one phase under another that went on inside it.
  void move(Phase from, Phase to, double seconds) {
    seconds_[static_cast<std::size_t>(from)] -= seconds;
    seconds_[static_cast<std::size_t>(to)] += seconds;
  }
  // Waits for other ranks inside of the passes and the update (Executor::take_seconds) as phases of their own; and what
  // of the last update a device did under the passes, as part of an update: a step shows that of the one before.
  void move_waits(double gather, double reduce, double homes, double update) {
    move(Phase::forward_backward, Phase::optimizer, update);
    move(Phase::optimizer, Phase::gather, homes);
    move(Phase::forward_backward, Phase::gather, gather);
    move(Phase::forward_backward, Phase::reduce, reduce);
  }
  double total() const { return last_ - begin_; }
  // Seconds by phase and, last, of all.
  std::array<double, static_cast<std::size_t>(Phase::count) + 1> seconds() const {
    std::array<double, static_cast<std::size_t>(Phase::count) + 1> all{};
    std::copy(seconds_.begin(), seconds_.end(), all.begin());
    all.back() = total();
    return all;
  }
  double operator[](Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }

 private:
  std::array<double, static_cast<std::size_t>(Phase::count)> seconds_{};
  double begin_ = 0, last_ = 0;
};

}  // namespace sestina
