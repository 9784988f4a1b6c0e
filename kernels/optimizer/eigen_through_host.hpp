// Decompositions on the host of matrices in the memory of any execution space: they come here, are decomposed by LAPACK
// (eigen_host.cpp) and go back, in host memory of its own that grows with the shapes seen. It is the solver of a device
// whose vendor library has none here (eigen_kokkos.hpp), and of one whose library is wrong (Solver::leave_to_host).
#pragma once
#include <algorithm>
#include <utility>

#include "kernels/optimizer/eigen.hpp"

namespace sestina {

namespace host_copies {

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

}  // namespace host_copies

// Does what Solver says (eigen.hpp), with none of the space's workspace.
template <class Exec>
class SolverThroughHost {
 public:
  explicit SolverThroughHost(const Exec& exec) : exec_(exec), solver_(Serial()) {}

  void report_to(Vector<std::int32_t, Exec> info) { info_ = info; }

  template <class T>
  bool eigh(Matrix<const T, Exec> a, Matrix<T, Exec> vectors, Vector<T, Exec> values) {
    require_eigh_shapes(a, vectors, values);
    const std::size_t d = a.extent(0);
    reserve([d](Workspace<Serial>& counter) {
      const host_copies::EighCopies<T> copies(counter, d);
      Solver<Serial>::declare_eigh<T>(counter, d);
    });
    const auto frame = workspace_.frame();
    const host_copies::EighCopies<T> copies(workspace_, d);
    fetch<T>(a, copies.a);
    if (!solver_.template eigh<T>(copies.a, copies.vectors, copies.values, workspace_)) return told(false);
    send<T>(copies.vectors, vectors);
    send<T>(copies.values, values);
    return told(true);
  }

  template <class T>
  void eigh_batch(Matrix<T, Exec> a, Matrix<T, Exec> vectors, Matrix<T, Exec> values, Vector<std::int32_t, Exec> info) {
    require_eigh_batch(a, vectors, values, info);
    const std::size_t d = values.extent(1);
    const Vector<std::int32_t, Exec> others = std::exchange(info_, {});
    for (std::size_t i = 0; i < info.extent(0); ++i) {
      const bool good =
          eigh<T>(stacked_at(a, i, d), stacked_at(vectors, i, d), Vector<T, Exec>(values.data() + i * d, d));
      host_copies::leave_info<Exec>(exec_, Vector<std::int32_t, Exec>(info.data() + i, 1), good ? 0 : 1);
    }
    info_ = others;
  }

  template <class T>
  bool qr(Matrix<const T, Exec> a, Matrix<T, Exec> q) {
    require_qr_shapes(a, q);
    const std::size_t m = a.extent(0), n = a.extent(1), p = q.extent(1);
    if (p == 0) return true;
    reserve([m, n, p](Workspace<Serial>& counter) {
      const host_copies::QrCopies<T> copies(counter, m, n, p);
      Solver<Serial>::declare_qr<T>(counter, m, n, p);
    });
    const auto frame = workspace_.frame();
    const host_copies::QrCopies<T> copies(workspace_, m, n, p);
    fetch<T>(a, copies.a);
    if (!solver_.template qr<T>(copies.a, copies.q, workspace_)) return told(false);
    send<T>(copies.q, q);
    return true;
  }

  template <class T>
  bool qr_columns(std::size_t n, Matrix<T, Exec> columns) {
    require_qr_columns(n, columns);
    const std::size_t m = columns.extent(1), p = columns.extent(0);
    if (p == 0) return true;
    reserve([m, n, p](Workspace<Serial>& counter) {
      const host_copies::QrColumns<T> copy(counter, m, p);
      Solver<Serial>::declare_qr_columns<T>(counter, m, n, p);
    });
    const auto frame = workspace_.frame();
    const host_copies::QrColumns<T> copy(workspace_, m, p);
    fetch<T>(columns, copy.columns);
    if (!solver_.template qr_columns<T>(n, copy.columns, workspace_)) return told(false);
    send<T>(copy.columns, columns);
    return true;
  }

  bool svd(Matrix<const double, Exec> a, Matrix<double, Exec> left, Vector<double, Exec> values,
           Matrix<double, Exec> right) {
    require_svd_shapes(a, left, values, right);
    const std::size_t m = a.extent(0), n = a.extent(1);
    reserve([m, n](Workspace<Serial>& counter) {
      const host_copies::SvdCopies copies(counter, m, n);
      Solver<Serial>::declare_svd(counter, m, n);
    });
    const auto frame = workspace_.frame();
    const host_copies::SvdCopies copies(workspace_, m, n);
    fetch<double>(a, copies.a);
    if (!solver_.svd(copies.a, copies.left, copies.values, copies.right, workspace_)) return told(false);
    send<double>(copies.left, left);
    send<double>(copies.right, right);
    send<double>(copies.values, values);
    return told(true);
  }

 private:
  // Makes room for what take(workspace) takes.
  template <class Take>
  void reserve(const Take& take) {
    const std::size_t bytes = bytes_taken<Serial>(take);
    if (workspace_.capacity() < bytes) workspace_ = Workspace<Serial>(bytes);
  }
  template <class T>
  void fetch(Matrix<const T, Exec> from, Matrix<T, Serial> to) {
    Kokkos::deep_copy(exec_, Vector<T, Serial>(to.data(), to.size()), Vector<const T, Exec>(from.data(), from.size()));
    exec_.fence("solver");
  }
  template <class T>
  void send(Matrix<T, Serial> from, Matrix<T, Exec> to) {
    send<T>(Vector<T, Serial>(from.data(), from.size()), Vector<T, Exec>(to.data(), to.size()));
  }
  template <class T>
  void send(Vector<T, Serial> from, Vector<T, Exec> to) {
    Kokkos::deep_copy(exec_, to, from);
    exec_.fence("solver");  // the next call writes where this one reads
  }
  // Returns what a call returns that found a solution or none.
  bool told(bool good) {
    if (info_.extent(0) == 0) return good;
    host_copies::leave_info<Exec>(exec_, info_, good ? 0 : 1);
    return true;
  }

  Exec exec_;
  Solver<Serial> solver_;
  Workspace<Serial> workspace_;
  Vector<std::int32_t, Exec> info_;  // empty: calls answer
};

}  // namespace sestina
