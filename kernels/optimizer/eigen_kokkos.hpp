// Solver written for any execution space: the twin of a device whose vendor library has none here (eigen_kokkos.cpp).
// Matrices come to the host, are decomposed there by LAPACK (eigen_host.cpp) and go back, in host memory of its own
// that grows with the shapes seen. Tests compile it for the host (regression/unit/portable).
#pragma once
#include "kernels/base/error.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {

// LAPACK's solver comes from eigen_host.cpp; without `extern` it would be instantiated from the templates below.
extern template class Solver<Serial>;
#define SESTINA_LAPACK_SOLVER(T)                                                                                 \
  extern template bool Solver<Serial>::eigh<T>(Matrix<const T, Serial>, Matrix<T, Serial>, Vector<T, Serial>,    \
                                               Workspace<Serial>&);                                              \
  extern template void Solver<Serial>::declare_eigh<T>(Workspace<Serial>&, std::size_t);                         \
  extern template bool Solver<Serial>::qr<T>(Matrix<const T, Serial>, Matrix<T, Serial>, Workspace<Serial>&);    \
  extern template void Solver<Serial>::declare_qr<T>(Workspace<Serial>&, std::size_t, std::size_t, std::size_t); \
  extern template bool Solver<Serial>::qr_columns<T>(std::size_t, Matrix<T, Serial>, Workspace<Serial>&);        \
  extern template void Solver<Serial>::declare_qr_columns<T>(Workspace<Serial>&, std::size_t, std::size_t, std::size_t);
SESTINA_LAPACK_SOLVER(float)
SESTINA_LAPACK_SOLVER(double)

namespace portable {

// The matrices' copies on the host, in addition to what LAPACK takes.
template <class T>
struct EighCopies {
  EighCopies(Workspace<Serial>& workspace, std::size_t d)
      : a(workspace.take<T>(d, d)), vectors(workspace.take<T>(d, d)), values(workspace.take<T>(d)) {}
  Matrix<T, Serial> a, vectors;
  Vector<T, Serial> values;
};
template <class T>
struct QrCopies {
  QrCopies(Workspace<Serial>& workspace, std::size_t m, std::size_t n, std::size_t p)
      : a(workspace.take<T>(m, n)), q(workspace.take<T>(m, p)) {}
  Matrix<T, Serial> a, q;
};
template <class T>
struct QrColumns {
  QrColumns(Workspace<Serial>& workspace, std::size_t m, std::size_t p) : columns(workspace.take<T>(p, m)) {}
  Matrix<T, Serial> columns;
};
struct SvdCopies {
  SvdCopies(Workspace<Serial>& workspace, std::size_t m, std::size_t n)
      : a(workspace.take<double>(m, n)),
        left(workspace.take<double>(m, std::min(m, n))),
        right(workspace.take<double>(n, std::min(m, n))),
        values(workspace.take<double>(std::min(m, n))) {}
  Matrix<double, Serial> a, left, right;
  Vector<double, Serial> values;
};

template <class Exec>
static void leave_info(const Exec& exec, Vector<std::int32_t, Exec> info, std::int32_t number) {
  Kokkos::parallel_for(
      "leave_info", Kokkos::RangePolicy<Exec>(exec, 0, 1), KOKKOS_LAMBDA(std::size_t) { info(0) = number; });
}

}  // namespace portable

template <class Exec>
struct Solver<Exec>::State {
  explicit State(const Exec& space) : exec(space), solver(Serial()) {}

  // Makes room for what take(workspace) takes.
  template <class Take>
  void reserve(const Take& take) {
    const std::size_t bytes = bytes_taken<Serial>(take);
    if (workspace.capacity() < bytes) workspace = Workspace<Serial>(bytes);
  }
  template <class T>
  void fetch(Matrix<const T, Exec> from, Matrix<T, Serial> to) {
    Kokkos::deep_copy(exec, Vector<T, Serial>(to.data(), to.size()), Vector<const T, Exec>(from.data(), from.size()));
    exec.fence("solver");
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
  // Returns what a call returns that found a solution or none.
  bool told(bool good) {
    if (info.extent(0) == 0) return good;
    portable::leave_info<Exec>(exec, info, good ? 0 : 1);
    return true;
  }

  Exec exec;
  Solver<Serial> solver;
  Workspace<Serial> workspace;
  Vector<std::int32_t, Exec> info;  // empty: calls answer
};

template <class Exec>
Solver<Exec>::Solver(const Exec& exec) : state_(std::make_unique<State>(exec)) {}
template <class Exec>
Solver<Exec>::~Solver() = default;
template <class Exec>
Solver<Exec>::Solver(Solver&&) noexcept = default;
template <class Exec>
void Solver<Exec>::report_to(Vector<std::int32_t, Exec> info) {
  state_->info = info;
}

// The device's workspace is not used.
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
  require_eigh_shapes(a, vectors, values);
  const std::size_t d = a.extent(0);
  State& s = *state_;
  s.reserve([d](Workspace<Serial>& counter) {
    const portable::EighCopies<T> copies(counter, d);
    Solver<Serial>::declare_eigh<T>(counter, d);
  });
  const auto frame = s.workspace.frame();
  const portable::EighCopies<T> copies(s.workspace, d);
  s.template fetch<T>(a, copies.a);
  if (!s.solver.template eigh<T>(copies.a, copies.vectors, copies.values, s.workspace)) return s.told(false);
  s.template send<T>(copies.vectors, vectors);
  s.template send<T>(copies.values, values);
  return s.told(true);
}

template <class Exec>
template <class T>
bool Solver<Exec>::qr(Matrix<const T, Exec> a, Matrix<T, Exec> q, Workspace<Exec>&) {
  require_qr_shapes(a, q);
  const std::size_t m = a.extent(0), n = a.extent(1), p = q.extent(1);
  if (p == 0) return true;
  State& s = *state_;
  s.reserve([m, n, p](Workspace<Serial>& counter) {
    const portable::QrCopies<T> copies(counter, m, n, p);
    Solver<Serial>::declare_qr<T>(counter, m, n, p);
  });
  const auto frame = s.workspace.frame();
  const portable::QrCopies<T> copies(s.workspace, m, n, p);
  s.template fetch<T>(a, copies.a);
  if (!s.solver.template qr<T>(copies.a, copies.q, s.workspace)) return s.told(false);
  s.template send<T>(copies.q, q);
  return true;
}

template <class Exec>
template <class T>
bool Solver<Exec>::qr_columns(std::size_t n, Matrix<T, Exec> columns, Workspace<Exec>&) {
  require_qr_columns(n, columns);
  const std::size_t m = columns.extent(1), p = columns.extent(0);
  if (p == 0) return true;
  State& s = *state_;
  s.reserve([m, n, p](Workspace<Serial>& counter) {
    const portable::QrColumns<T> copy(counter, m, p);
    Solver<Serial>::declare_qr_columns<T>(counter, m, n, p);
  });
  const auto frame = s.workspace.frame();
  const portable::QrColumns<T> copy(s.workspace, m, p);
  s.template fetch<T>(columns, copy.columns);
  if (!s.solver.template qr_columns<T>(n, copy.columns, s.workspace)) return s.told(false);
  s.template send<T>(copy.columns, columns);
  return true;
}

template <class Exec>
bool Solver<Exec>::svd(Matrix<const double, Exec> a, Matrix<double, Exec> left, Vector<double, Exec> values,
                       Matrix<double, Exec> right, Workspace<Exec>&) {
  require_svd_shapes(a, left, values, right);
  const std::size_t m = a.extent(0), n = a.extent(1);
  State& s = *state_;
  s.reserve([m, n](Workspace<Serial>& counter) {
    const portable::SvdCopies copies(counter, m, n);
    Solver<Serial>::declare_svd(counter, m, n);
  });
  const auto frame = s.workspace.frame();
  const portable::SvdCopies copies(s.workspace, m, n);
  s.template fetch<double>(a, copies.a);
  if (!s.solver.svd(copies.a, copies.left, copies.values, copies.right, s.workspace)) return s.told(false);
  s.template send<double>(copies.left, left);
  s.template send<double>(copies.right, right);
  s.template send<double>(copies.values, values);
  return s.told(true);
}

}  // namespace sestina

// Explicit instantiations for a space, in namespace sestina.
#define SESTINA_KOKKOS_SOLVER_TYPE(Exec, T)                                                                       \
  template bool Solver<Exec>::eigh<T>(Matrix<const T, Exec>, Matrix<T, Exec>, Vector<T, Exec>, Workspace<Exec>&); \
  template void Solver<Exec>::declare_eigh<T>(Workspace<Exec>&, std::size_t);                                     \
  template bool Solver<Exec>::qr<T>(Matrix<const T, Exec>, Matrix<T, Exec>, Workspace<Exec>&);                    \
  template void Solver<Exec>::declare_qr<T>(Workspace<Exec>&, std::size_t, std::size_t, std::size_t);             \
  template bool Solver<Exec>::qr_columns<T>(std::size_t, Matrix<T, Exec>, Workspace<Exec>&);                      \
  template void Solver<Exec>::declare_qr_columns<T>(Workspace<Exec>&, std::size_t, std::size_t, std::size_t);
#define SESTINA_KOKKOS_SOLVER(Exec)       \
  template class Solver<Exec>;            \
  SESTINA_KOKKOS_SOLVER_TYPE(Exec, float) \
  SESTINA_KOKKOS_SOLVER_TYPE(Exec, double)
