// Solver for any execution space, by the host: the twin of a device whose vendor library has none here
// (eigen_kokkos.cpp). Tests compile it for the host (regression/unit/portable).
#pragma once
#include "kernels/optimizer/eigen_through_host.hpp"

namespace sestina {

// LAPACK's solver comes from eigen_host.cpp; without `extern` it would be instantiated from the templates below.
extern template class Solver<Serial>;
#define SESTINA_LAPACK_SOLVER(T)                                                                                  \
  extern template bool Solver<Serial>::eigh<T>(Matrix<const T, Serial>, Matrix<T, Serial>, Vector<T, Serial>,     \
                                               Workspace<Serial>&);                                               \
  extern template void Solver<Serial>::declare_eigh<T>(Workspace<Serial>&, std::size_t);                          \
  extern template void Solver<Serial>::eigh_batch<T>(Matrix<T, Serial>, Matrix<T, Serial>, Matrix<T, Serial>,     \
                                                     Vector<std::int32_t, Serial>, Workspace<Serial>&);           \
  extern template void Solver<Serial>::declare_eigh_batch<T>(Workspace<Serial>&, std::size_t, std::size_t) const; \
  extern template bool Solver<Serial>::qr<T>(Matrix<const T, Serial>, Matrix<T, Serial>, Workspace<Serial>&);     \
  extern template void Solver<Serial>::declare_qr<T>(Workspace<Serial>&, std::size_t, std::size_t, std::size_t);  \
  extern template bool Solver<Serial>::qr_columns<T>(std::size_t, Matrix<T, Serial>, Workspace<Serial>&);         \
  extern template void Solver<Serial>::declare_qr_columns<T>(Workspace<Serial>&, std::size_t, std::size_t, std::size_t);
SESTINA_LAPACK_SOLVER(float)
SESTINA_LAPACK_SOLVER(double)

template <class Exec>
struct Solver<Exec>::State {
  SolverThroughHost<Exec> solver;
};

template <class Exec>
Solver<Exec>::Solver(const Exec& exec) : state_(std::make_unique<State>(State{SolverThroughHost<Exec>(exec)})) {}
template <class Exec>
Solver<Exec>::~Solver() = default;
template <class Exec>
Solver<Exec>::Solver(Solver&&) noexcept = default;
template <class Exec>
bool Solver<Exec>::leave_to_host() {
  return false;
}
template <class Exec>
void Solver<Exec>::report_to(Vector<std::int32_t, Exec> info) {
  state_->solver.report_to(info);
}

template <class Exec>
template <class T>
void Solver<Exec>::declare_eigh(Workspace<Exec>&, std::size_t) {}
template <class Exec>
template <class T>
void Solver<Exec>::declare_qr(Workspace<Exec>&, std::size_t, std::size_t, std::size_t) {}
template <class Exec>
template <class T>
void Solver<Exec>::declare_qr_columns(Workspace<Exec>&, std::size_t, std::size_t, std::size_t) {}
template <class Exec>
void Solver<Exec>::declare_svd(Workspace<Exec>&, std::size_t, std::size_t) {}

template <class Exec>
template <class T>
bool Solver<Exec>::eigh(Matrix<const T, Exec> a, Matrix<T, Exec> vectors, Vector<T, Exec> values, Workspace<Exec>&) {
  return state_->solver.template eigh<T>(a, vectors, values);
}
template <class Exec>
template <class T>
void Solver<Exec>::eigh_batch(Matrix<T, Exec> a, Matrix<T, Exec> vectors, Matrix<T, Exec> values,
                              Vector<std::int32_t, Exec> info, Workspace<Exec>&) {
  state_->solver.template eigh_batch<T>(a, vectors, values, info);
}
template <class Exec>
template <class T>
void Solver<Exec>::declare_eigh_batch(Workspace<Exec>&, std::size_t, std::size_t) const {}
template <class Exec>
template <class T>
bool Solver<Exec>::qr(Matrix<const T, Exec> a, Matrix<T, Exec> q, Workspace<Exec>&) {
  return state_->solver.template qr<T>(a, q);
}
template <class Exec>
template <class T>
bool Solver<Exec>::qr_columns(std::size_t n, Matrix<T, Exec> columns, Workspace<Exec>&) {
  return state_->solver.template qr_columns<T>(n, columns);
}
template <class Exec>
bool Solver<Exec>::svd(Matrix<const double, Exec> a, Matrix<double, Exec> left, Vector<double, Exec> values,
                       Matrix<double, Exec> right, Workspace<Exec>&) {
  return state_->solver.svd(a, left, values, right);
}

}  // namespace sestina

// Explicit instantiations for a space, in namespace sestina.
#define SESTINA_KOKKOS_SOLVER_TYPE(Exec, T)                                                                       \
  template bool Solver<Exec>::eigh<T>(Matrix<const T, Exec>, Matrix<T, Exec>, Vector<T, Exec>, Workspace<Exec>&); \
  template void Solver<Exec>::declare_eigh<T>(Workspace<Exec>&, std::size_t);                                     \
  template void Solver<Exec>::eigh_batch<T>(Matrix<T, Exec>, Matrix<T, Exec>, Matrix<T, Exec>,                    \
                                            Vector<std::int32_t, Exec>, Workspace<Exec>&);                        \
  template void Solver<Exec>::declare_eigh_batch<T>(Workspace<Exec>&, std::size_t, std::size_t) const;            \
  template bool Solver<Exec>::qr<T>(Matrix<const T, Exec>, Matrix<T, Exec>, Workspace<Exec>&);                    \
  template void Solver<Exec>::declare_qr<T>(Workspace<Exec>&, std::size_t, std::size_t, std::size_t);             \
  template bool Solver<Exec>::qr_columns<T>(std::size_t, Matrix<T, Exec>, Workspace<Exec>&);                      \
  template void Solver<Exec>::declare_qr_columns<T>(Workspace<Exec>&, std::size_t, std::size_t, std::size_t);
#define SESTINA_KOKKOS_SOLVER(Exec)       \
  template class Solver<Exec>;            \
  SESTINA_KOKKOS_SOLVER_TYPE(Exec, float) \
  SESTINA_KOKKOS_SOLVER_TYPE(Exec, double)
