// Solver on the host through LAPACK. A row-major matrix read as column-major is its transpose: a symmetric matrix stays
// what it is, others are transposed on the way in and out, which costs little compared with the decomposition.
#include "kernels/optimizer/eigen.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/base/thread_count.hpp"
#include "kernels/optimizer/householder_host.hpp"
#include "kernels/optimizer/lapack.hpp"

namespace sestina {
namespace {

constexpr std::size_t panel = 64;  // columns that LAPACK works on at a time, at most

// The rows of a matrix in memory.
template <class T>
struct Rows {
  T* data;
  std::size_t leading;
  T* row(std::size_t i) const { return data + i * leading; }
};

// Sets y (cols, rows) = x^T for x (rows, cols), in blocks that stay in the first-level cache. reversed: rows of x are
// taken from the last to the first.
template <class T>
void transpose(Rows<const T> x, std::size_t rows, std::size_t cols, Rows<T> y, bool reversed = false) {
  constexpr std::size_t block = 32;
  for (std::size_t row = 0; row < rows; row += block)
    for (std::size_t col = 0; col < cols; col += block)
      for (std::size_t j = col; j < std::min(col + block, cols); ++j)
        for (std::size_t i = row; i < std::min(row + block, rows); ++i)
          y.row(j)[i] = x.row(reversed ? rows - 1 - i : i)[j];
}

// Returns a size as the int in which the Fortran interface counts.
int as_int(std::size_t n) { return static_cast<int>(n); }

template <class T>
std::size_t eigh_work(std::size_t d) {
  return 1 + (6 + panel) * d + 2 * d * d;
}
std::size_t eigh_iwork(std::size_t d) { return 3 + 5 * d; }

std::size_t svd_work(std::size_t m, std::size_t n) {
  double best = 0;
  int none = 0;
  lapack::gesdd(as_int(n), as_int(m), nullptr, nullptr, nullptr, nullptr, &best, -1, &none);
  return static_cast<std::size_t>(best) + 1;
}

template <class Exec, class T>
struct EighScratch {
  EighScratch(Workspace<Exec>& workspace, std::size_t d)
      : work(workspace.template take<T>(eigh_work<T>(d))),
        rising(workspace.template take<T>(d)),
        iwork(workspace.template take<int>(eigh_iwork(d))) {}
  Vector<T, Exec> work, rising;
  Vector<int, Exec> iwork;
};

template <class Exec, class T>
struct QrScratch {
  QrScratch(Workspace<Exec>& workspace, std::size_t m, std::size_t p)
      : columns(workspace.template take<T>(host::padded_rows(m) * p)),
        scratch(workspace.template take<T>(host::householder_scratch(m, p))) {}
  Vector<T, Exec> columns, scratch;
};

template <class Exec>
struct SvdScratch {
  SvdScratch(Workspace<Exec>& workspace, std::size_t m, std::size_t n)
      : copy(workspace.template take<double>(m * n)),
        right_rows(workspace.template take<double>(n * std::min(m, n))),
        work(workspace.template take<double>(svd_work(m, n))),
        iwork(workspace.template take<int>(8 * std::min(m, n))) {}
  Vector<double, Exec> copy, right_rows, work;
  Vector<int, Exec> iwork;
};

}  // namespace

template <class Exec>
struct Solver<Exec>::State {};

template <class Exec>
Solver<Exec>::Solver(const Exec&) {}
template <class Exec>
Solver<Exec>::~Solver() = default;
template <class Exec>
Solver<Exec>::Solver(Solver&&) noexcept = default;
template <class Exec>
bool Solver<Exec>::leave_to_host() {
  return false;
}
template <class Exec>
void Solver<Exec>::report_to(Vector<std::int32_t, Exec>) {}

template <class Exec>
template <class T>
void Solver<Exec>::declare_eigh(Workspace<Exec>& workspace, std::size_t d) {
  if (d > 0) declare<EighScratch<Exec, T>>(workspace, d);
}

template <class Exec>
template <class T>
bool Solver<Exec>::eigh(Matrix<const T, Exec> a, Matrix<T, Exec> vectors, Vector<T, Exec> values,
                        Workspace<Exec>& workspace) {
  const std::size_t d = a.extent(0);
  require_eigh_shapes(a, vectors, values);
  if (d == 0) return true;
  const auto frame = workspace.frame();
  const EighScratch<Exec, T> s(workspace, d);
  std::copy_n(a.data(), d * d, vectors.data());
  const ThreadCount one(1);
  if (lapack::syevd(as_int(d), vectors.data(), s.rising.data(), s.work.data(), as_int(s.work.size()), s.iwork.data(),
                    as_int(s.iwork.size())) != 0)
    return false;
  std::copy_n(vectors.data(), d * d, s.work.data());  // rows are vectors, by rising value
  transpose<T>({s.work.data(), d}, d, d, {vectors.data(), d}, true);
  std::reverse_copy(s.rising.data(), s.rising.data() + d, values.data());
  return true;
}

template <class Exec>
template <class T>
void Solver<Exec>::eigh_batch(Matrix<T, Exec> a, Matrix<T, Exec> vectors, Matrix<T, Exec> values,
                              Vector<std::int32_t, Exec> info, Workspace<Exec>& workspace) {
  require_eigh_batch(a, vectors, values, info);
  const std::size_t d = values.extent(1);
  for (std::size_t i = 0; i < info.extent(0); ++i) {
    const Vector<T, Exec> own(values.data() + i * d, d);
    info(i) = eigh<T>(stacked_at(a, i, d), stacked_at(vectors, i, d), own, workspace) ? 0 : 1;
  }
}
template <class Exec>
template <class T>
void Solver<Exec>::declare_eigh_batch(Workspace<Exec>& workspace, std::size_t, std::size_t d) const {
  declare_eigh<T>(workspace, d);
}

template <class Exec>
template <class T>
void Solver<Exec>::declare_qr(Workspace<Exec>& workspace, std::size_t m, std::size_t, std::size_t p) {
  if (p > 0) declare<QrScratch<Exec, T>>(workspace, m, p);
}

template <class Exec>
template <class T>
bool Solver<Exec>::qr(Matrix<const T, Exec> a, Matrix<T, Exec> q, Workspace<Exec>& workspace) {
  const std::size_t m = a.extent(0), n = a.extent(1), p = q.extent(1);
  require_qr_shapes(a, q);
  if (p == 0) return true;
  const auto frame = workspace.frame();
  const std::size_t apart = host::padded_rows(m);
  const QrScratch<Exec, T> s(workspace, m, p);
  transpose<T>({a.data(), n}, m, n, {s.columns.data(), apart});
  const ThreadCount one(1);
  if (!host::form_q<T>(m, n, p, s.columns.data(), s.scratch.data())) return false;
  transpose<T>({s.columns.data(), apart}, p, m, {q.data(), p});
  return true;
}

template <class Exec>
template <class T>
void Solver<Exec>::declare_qr_columns(Workspace<Exec>& workspace, std::size_t m, std::size_t n, std::size_t p) {
  declare_qr<T>(workspace, m, n, p);
}

template <class Exec>
template <class T>
bool Solver<Exec>::qr_columns(std::size_t n, Matrix<T, Exec> columns, Workspace<Exec>& workspace) {
  const std::size_t m = columns.extent(1), p = columns.extent(0);
  require_qr_columns(n, columns);
  if (p == 0) return true;
  const auto frame = workspace.frame();
  const std::size_t apart = host::padded_rows(m);
  const QrScratch<Exec, T> s(workspace, m, p);
  for (std::size_t j = 0; j < n; ++j) std::copy_n(&columns(j, 0), m, s.columns.data() + j * apart);
  const ThreadCount one(1);
  if (!host::form_q<T>(m, n, p, s.columns.data(), s.scratch.data())) return false;
  for (std::size_t j = 0; j < p; ++j) std::copy_n(s.columns.data() + j * apart, m, &columns(j, 0));
  return true;
}

template <class Exec>
void Solver<Exec>::declare_svd(Workspace<Exec>& workspace, std::size_t m, std::size_t n) {
  if (std::min(m, n) > 0) declare<SvdScratch<Exec>>(workspace, m, n);
}

template <class Exec>
bool Solver<Exec>::svd(Matrix<const double, Exec> a, Matrix<double, Exec> left, Vector<double, Exec> values,
                       Matrix<double, Exec> right, Workspace<Exec>& workspace) {
  const std::size_t m = a.extent(0), n = a.extent(1), k = std::min(m, n);
  require_svd_shapes(a, left, values, right);
  if (k == 0) return true;
  const auto frame = workspace.frame();
  const SvdScratch<Exec> s(workspace, m, n);
  std::copy_n(a.data(), m * n, s.copy.data());
  const ThreadCount one(1);
  // LAPACK sees A^T (n, m) = right diag left^T; its left^T (k, m) by columns is left (m, k) by rows.
  if (lapack::gesdd(as_int(n), as_int(m), s.copy.data(), values.data(), s.right_rows.data(), left.data(), s.work.data(),
                    as_int(s.work.size()), s.iwork.data()) != 0)
    return false;
  transpose<double>({s.right_rows.data(), n}, k, n, {right.data(), k});
  return true;
}

#define SESTINA_SOLVER_TYPE(Exec, T)                                                                              \
  template bool Solver<Exec>::eigh<T>(Matrix<const T, Exec>, Matrix<T, Exec>, Vector<T, Exec>, Workspace<Exec>&); \
  template void Solver<Exec>::declare_eigh<T>(Workspace<Exec>&, std::size_t);                                     \
  template void Solver<Exec>::eigh_batch<T>(Matrix<T, Exec>, Matrix<T, Exec>, Matrix<T, Exec>,                    \
                                            Vector<std::int32_t, Exec>, Workspace<Exec>&);                        \
  template void Solver<Exec>::declare_eigh_batch<T>(Workspace<Exec>&, std::size_t, std::size_t) const;            \
  template bool Solver<Exec>::qr<T>(Matrix<const T, Exec>, Matrix<T, Exec>, Workspace<Exec>&);                    \
  template void Solver<Exec>::declare_qr<T>(Workspace<Exec>&, std::size_t, std::size_t, std::size_t);             \
  template bool Solver<Exec>::qr_columns<T>(std::size_t, Matrix<T, Exec>, Workspace<Exec>&);                      \
  template void Solver<Exec>::declare_qr_columns<T>(Workspace<Exec>&, std::size_t, std::size_t, std::size_t);
#define SESTINA_SOLVER(Exec)       \
  template class Solver<Exec>;     \
  SESTINA_SOLVER_TYPE(Exec, float) \
  SESTINA_SOLVER_TYPE(Exec, double)
SESTINA_SOLVER(Host)
SESTINA_SOLVER(Serial)

}  // namespace sestina
