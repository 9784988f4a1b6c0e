// Stopwatch written for any execution space: the twin of a device whose events have none here (gemm_kokkos.cpp). Kokkos
// has no events: it waits at both ends and takes the time of the thread. Tests compile it for the host.
#pragma once
#include <chrono>

#include "kernels/blas/stopwatch.hpp"

namespace sestina {

template <class Exec>
struct Stopwatch<Exec>::State {
  Exec exec;
  std::chrono::steady_clock::time_point begin = {}, end = {};
};

template <class Exec>
Stopwatch<Exec>::Stopwatch(const Exec& exec) : state_(std::make_unique<State>(State{exec})) {}
template <class Exec>
Stopwatch<Exec>::~Stopwatch() = default;
template <class Exec>
Stopwatch<Exec>::Stopwatch(Stopwatch&&) noexcept = default;

template <class Exec>
void Stopwatch<Exec>::start() {
  state_->exec.fence("stopwatch");
  state_->begin = std::chrono::steady_clock::now();
}
template <class Exec>
void Stopwatch<Exec>::stop() {
  state_->exec.fence("stopwatch");
  state_->end = std::chrono::steady_clock::now();
}
template <class Exec>
double Stopwatch<Exec>::seconds() const {
  return std::chrono::duration<double>(state_->end - state_->begin).count();
}

}  // namespace sestina
