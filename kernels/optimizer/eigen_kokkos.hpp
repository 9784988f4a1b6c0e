// Solver written for any execution space: the twin of a device whose vendor library has none here (eigen_kokkos.cpp).
// Matrices come to the host, are decomposed there by LAPACK (eigen_host.cpp) and go back, in host memory of its own
// that grows with the shapes seen. Tests compile it for the host (regression/unit/portable).
#pragma once
#include "kernels/base/error.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {

// LAPACK's, from eigen_host.cpp; without this word it would be made of what stands below.
extern template class Solver<Serial>;
#define SESTINA_LAPACK_SOLVER(T)                                                                              \
  extern template bool Solver<Serial>::eigh<T>(Matrix<const T, Serial>, Matrix<T, Serial>, Vector<T, Serial>, \
                                               Workspace<Serial>&);                                           \
  extern template std::size_t Solver<Serial>::eigh_bytes<T>(std::size_t);                                     \
  extern template bool Solver<Serial>::qr<T>(Matrix<const T, Serial>, Matrix<T, Serial>, Workspace<Serial>&); \
  extern template std::size_t Solver<Serial>::qr_bytes<T>(std::size_t, std::size_t, std::size_t);
SESTINA_LAPACK_SOLVER(float)
SESTINA_LAPACK_SOLVER(double)

namespace portable {

template <class Exec>
static void count_failure(const Exec& exec, Vector<double, Exec> failures) {
  Kokkos::parallel_for(
      "count_failure", Kokkos::RangePolicy<Exec>(exec, 0, 1), KOKKOS_LAMBDA(std::size_t) { failures(0) += 1; });
}

}  // namespace portable

template <class Exec>
struct Solver<Exec>::State {
  explicit State(const Exec& space) : exec(space), solver(Serial()) {}

  // Room for so many elements, and for what the solver itself takes.
  template <class T>
  void reserve(std::size_t elements, std::size_t solver_bytes) {
    constexpr std::size_t matrices = 4;  // each begins at a boundary of its own
    const std::size_t bytes =
        Workspace<Serial>::bytes<T>(elements) + matrices * Workspace<Serial>::alignment + solver_bytes;
    if (workspace.capacity() < bytes) workspace = Workspace<Serial>(bytes);
  }
  template <class T>
  Matrix<T, Serial> fetched(Matrix<const T, Exec> x) {
    const auto host = workspace.template take<T>(x.extent(0), x.extent(1));
    Kokkos::deep_copy(exec, Vector<T, Serial>(host.data(), host.size()), Vector<const T, Exec>(x.data(), x.size()));
    exec.fence("solver");
    return host;
  }
  template <class T>
  void send(Matrix<T, Serial> from, Matrix<T, Exec> to) {
    send(Vector<T, Serial>(from.data(), from.size()), Vector<T, Exec>(to.data(), to.size()));
  }
  template <class T>
  void send(Vector<T, Serial> from, Vector<T, Exec> to) {
    Kokkos::deep_copy(exec, to, from);
    exec.fence("solver");  // the next call writes where this one reads
  }
  // What a call answers that found a solution or none.
  bool told(bool good) {
    if (good || failures.extent(0) == 0) return good;
    portable::count_failure<Exec>(exec, failures);
    return true;
  }

  Exec exec;
  Solver<Serial> solver;
  Workspace<Serial> workspace;
  Vector<double, Exec> failures;  // empty: calls answer
};

template <class Exec>
Solver<Exec>::Solver(const Exec& exec) : state_(std::make_unique<State>(exec)) {}
template <class Exec>
Solver<Exec>::~Solver() = default;
template <class Exec>
Solver<Exec>::Solver(Solver&&) noexcept = default;
template <class Exec>
void Solver<Exec>::report_to(Vector<double, Exec> failures) {
  state_->failures = failures;
}

// None of the device's workspace is needed.
template <class Exec>
template <class T>
std::size_t Solver<Exec>::eigh_bytes(std::size_t) {
  return 0;
}
template <class Exec>
template <class T>
std::size_t Solver<Exec>::qr_bytes(std::size_t, std::size_t, std::size_t) {
  return 0;
}
template <class Exec>
std::size_t Solver<Exec>::svd_bytes(std::size_t, std::size_t) {
  return 0;
}

template <class Exec>
template <class T>
bool Solver<Exec>::eigh(Matrix<const T, Exec> a, Matrix<T, Exec> vectors, Vector<T, Exec> values, Workspace<Exec>&) {
  require_eigh_shapes(a, vectors, values);
  const std::size_t d = a.extent(0);
  State& s = *state_;
  s.template reserve<T>(2 * a.size() + d, Solver<Serial>::eigh_bytes<T>(d));
  const auto frame = s.workspace.frame();
  const auto found = s.workspace.template take<T>(d, d);
  const auto falling = s.workspace.template take<T>(d);
  if (!s.solver.template eigh<T>(s.template fetched<T>(a), found, falling, s.workspace)) return s.told(false);
  s.template send<T>(found, vectors);
  s.template send<T>(falling, values);
  return true;
}

template <class Exec>
template <class T>
bool Solver<Exec>::qr(Matrix<const T, Exec> a, Matrix<T, Exec> q, Workspace<Exec>&) {
  require_qr_shapes(a, q);
  const std::size_t m = a.extent(0), p = q.extent(1);
  if (p == 0) return true;
  State& s = *state_;
  s.template reserve<T>(a.size() + q.size(), Solver<Serial>::qr_bytes<T>(m, a.extent(1), p));
  const auto frame = s.workspace.frame();
  const auto found = s.workspace.template take<T>(m, p);
  if (!s.solver.template qr<T>(s.template fetched<T>(a), found, s.workspace)) return s.told(false);
  s.template send<T>(found, q);
  return true;
}

template <class Exec>
bool Solver<Exec>::svd(Matrix<const double, Exec> a, Matrix<double, Exec> left, Vector<double, Exec> values,
                       Matrix<double, Exec> right, Workspace<Exec>&) {
  require_svd_shapes(a, left, values, right);
  State& s = *state_;
  s.template reserve<double>(a.size() + left.size() + values.size() + right.size(),
                             Solver<Serial>::svd_bytes(a.extent(0), a.extent(1)));
  const auto frame = s.workspace.frame();
  const auto host_left = s.workspace.template take<double>(left.extent(0), left.extent(1));
  const auto host_right = s.workspace.template take<double>(right.extent(0), right.extent(1));
  const auto falling = s.workspace.template take<double>(values.extent(0));
  if (!s.solver.svd(s.template fetched<double>(a), host_left, falling, host_right, s.workspace)) return s.told(false);
  s.template send<double>(host_left, left);
  s.template send<double>(host_right, right);
  s.template send<double>(falling, values);
  return true;
}

}  // namespace sestina

// Explicit instantiations for a space, in namespace sestina.
#define SESTINA_KOKKOS_SOLVER_TYPE(Exec, T)                                                                       \
  template bool Solver<Exec>::eigh<T>(Matrix<const T, Exec>, Matrix<T, Exec>, Vector<T, Exec>, Workspace<Exec>&); \
  template std::size_t Solver<Exec>::eigh_bytes<T>(std::size_t);                                                  \
  template bool Solver<Exec>::qr<T>(Matrix<const T, Exec>, Matrix<T, Exec>, Workspace<Exec>&);                    \
  template std::size_t Solver<Exec>::qr_bytes<T>(std::size_t, std::size_t, std::size_t);
#define SESTINA_KOKKOS_SOLVER(Exec)       \
  template class Solver<Exec>;            \
  SESTINA_KOKKOS_SOLVER_TYPE(Exec, float) \
  SESTINA_KOKKOS_SOLVER_TYPE(Exec, double)
