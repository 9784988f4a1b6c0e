// Seconds that pass on the host. No Kokkos.
#pragma once
#include <chrono>

namespace sestina {

// Since an arbitrary start; monotonic.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the seconds that it lives to a sum.
class SecondsSpent {
 public:
  explicit SecondsSpent(double& sum) : sum_(sum) {}
  ~SecondsSpent() { sum_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  SecondsSpent(const SecondsSpent&) = delete;
  SecondsSpent& operator=(const SecondsSpent&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& sum_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace sestina
