// How long work queued in an execution space takes there: between two places of its queue, not between two moments of
// the calling thread, and without a wait. Twins: stopwatch_host.cpp (work is done when the call returns, so that is the
// time of the thread), stopwatch_cuda.cpp (events on the stream), stopwatch_kokkos.hpp (other devices: it does wait).
#pragma once
#include <memory>

#include "kernels/blas/exec.hpp"

namespace sestina {

template <class Exec>
class Stopwatch {
 public:
  explicit Stopwatch(const Exec&);
  ~Stopwatch();
  Stopwatch(Stopwatch&&) noexcept;

  void start();
  void stop();
  // Returns the time between the last start and stop; valid only after a wait for what was queued before stop.
  double seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sestina
