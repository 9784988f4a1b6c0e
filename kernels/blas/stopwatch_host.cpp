#include <chrono>

#include "kernels/blas/stopwatch.hpp"

namespace sestina {

template <class Exec>
struct Stopwatch<Exec>::State {
  std::chrono::steady_clock::time_point begin, end;
};

template <class Exec>
Stopwatch<Exec>::Stopwatch(const Exec&) : state_(std::make_unique<State>()) {}
template <class Exec>
Stopwatch<Exec>::~Stopwatch() = default;
template <class Exec>
Stopwatch<Exec>::Stopwatch(Stopwatch&&) noexcept = default;

template <class Exec>
void Stopwatch<Exec>::start() {
  state_->begin = std::chrono::steady_clock::now();
}
template <class Exec>
void Stopwatch<Exec>::stop() {
  state_->end = std::chrono::steady_clock::now();
}
template <class Exec>
double Stopwatch<Exec>::seconds() const {
  return std::chrono::duration<double>(state_->end - state_->begin).count();
}

template class Stopwatch<Serial>;
template class Stopwatch<Host>;

}  // namespace sestina
