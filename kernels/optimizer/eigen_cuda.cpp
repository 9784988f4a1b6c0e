// Solver on the device through cuSOLVER. A row-major matrix read as column-major is its transpose: a symmetric matrix
// stays what it is, others are transposed on the way in and out. Where cuSOLVER has been found wrong, the host
// decomposes.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/optimizer/cusolver_cuda.hpp"
#include "kernels/optimizer/eigen_through_host.hpp"

namespace sestina {
namespace {

using Cuda = Kokkos::Cuda;

using namespace cusolver;

std::atomic<bool> left_to_host = false;  // solvers that are made from then on

#if CUSOLVER_VERSION >= 11701  // CUDA 12.6.2
using Params = Owned<cusolverDnParams_t, cusolverDnCreateParams, cusolverDnDestroyParams>;

// Bytes of scratch of syevBatched, on the device and on the host.
struct BatchBytes {
  std::size_t device = 0, host = 0;
};
template <class T>
constexpr cudaDataType type_of = std::is_same_v<T, double> ? CUDA_R_64F : CUDA_R_32F;

template <class T>
BatchBytes batch_bytes(cusolverDnHandle_t h, cusolverDnParams_t params, std::size_t count, std::size_t d) {
  BatchBytes bytes;
  const auto n = static_cast<std::int64_t>(d);
  check_cusolver(cusolverDnXsyevBatched_bufferSize(h, params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n,
                                                   type_of<T>, nullptr, n, type_of<T>, nullptr, type_of<T>,
                                                   &bytes.device, &bytes.host, static_cast<std::int64_t>(count)),
                 "size of syevBatched");
  return bytes;
}
#endif

// Sets y (cols, rows) = x^T for x (rows, cols).
template <class T>
void transpose(const Cuda& exec, const T* x, std::size_t rows, std::size_t cols, T* y) {
  const Kokkos::RangePolicy<Cuda> all(exec, 0, rows * cols);
  Kokkos::parallel_for(
      "transpose", all, KOKKOS_LAMBDA(std::size_t at) { y[at] = x[at % rows * cols + at / rows]; });
}

// Turns eigenvectors as rows (count, d, d) into columns, and their values (count, d): both rise in, and fall out.
template <class T>
void make_falling(const Cuda& exec, std::size_t count, std::size_t d, const T* rows, const T* rising, T* vectors,
                  T* values) {
  const Kokkos::RangePolicy<Cuda> all(exec, 0, count * d * d);
  Kokkos::parallel_for(
      "make_falling", all, KOKKOS_LAMBDA(std::size_t at) {
        const std::size_t matrix = at / (d * d), i = at / d % d, j = at % d, last = d - 1 - j;
        vectors[at] = rows[(matrix * d + last) * d + i];
        if (i == 0) values[matrix * d + j] = rising[matrix * d + last];
      });
}

template <class T>
void copy(const Cuda& exec, const T* x, std::size_t n, T* y) {
  const Kokkos::RangePolicy<Cuda> all(exec, 0, n);
  Kokkos::parallel_for(
      "copy", all, KOKKOS_LAMBDA(std::size_t i) { y[i] = x[i]; });
}

template <class T>
struct EighScratch {
  EighScratch(Workspace<Cuda>& workspace, cusolverDnHandle_t handle, std::size_t d)
      : rows(workspace.take<T>(d * d)),
        rising(workspace.take<T>(d)),
        work(workspace.take<T>(eigh_size(handle, as_int(d), static_cast<T*>(nullptr)))) {}
  Vector<T, Cuda> rows, rising, work;
};

#if CUSOLVER_VERSION >= 11701
template <class T>
struct EighBatchScratch {
  EighBatchScratch(Workspace<Cuda>& workspace, std::size_t count, std::size_t d, std::size_t bytes)
      : rising(workspace.take<T>(count * d)), work(workspace.take<std::uint8_t>(bytes)) {}
  Vector<T, Cuda> rising;
  Vector<std::uint8_t, Cuda> work;
};
#endif

template <class T>
struct QrColumns {
  QrColumns(Workspace<Cuda>& workspace, std::size_t m, std::size_t p) : columns(workspace.take<T>(p, m)) {}
  Matrix<T, Cuda> columns;
};
template <class T>
struct QrScratch {
  QrScratch(Workspace<Cuda>& workspace, cusolverDnHandle_t handle, std::size_t m, std::size_t n, std::size_t p)
      : tau(workspace.take<T>(n)),
        work(workspace.take<T>(qr_size(handle, as_int(m), as_int(n), as_int(p), static_cast<T*>(nullptr)))) {}
  Vector<T, Cuda> tau, work;
};

struct SvdScratch {
  SvdScratch(Workspace<Cuda>& workspace, cusolverDnHandle_t handle, std::size_t m, std::size_t n)
      : input(workspace.take<double>(m * n)),
        rows(workspace.take<double>(std::max(m, n) * std::min(m, n))),
        work(workspace.take<double>(svd_size(handle, m, n))) {}
  Vector<double, Cuda> input, rows, work;
};

}  // namespace

template <>
struct Solver<Cuda>::State {
  explicit State(const Cuda& space) : exec(space), info("sestina::cusolver"), host("sestina::cusolver_host") {
    check_cusolver(cusolverDnSetStream(handle, exec.cuda_stream()), "setting the stream");
    if (left_to_host) host_solver = std::make_unique<SolverThroughHost<Cuda>>(exec);
  }

  // Returns where eigh and svd say whether they found a solution.
  int* answer() { return reported.extent(0) > 0 ? reported.data() : info.data(); }
  // Returns whether they did, as far as this is not for others to see.
  bool good() {
    if (reported.extent(0) > 0) return true;
    Kokkos::deep_copy(exec, host, info);
    exec.fence("solver");
    return host(0) == 0;
  }
  void finish() {
    if (reported.extent(0) == 0) exec.fence("solver");
  }

  Cuda exec;
  Handle handle;
#if CUSOLVER_VERSION >= 11701
  Params params;
  std::vector<std::uint8_t> on_host;  // scratch of batches
#endif
  Kokkos::View<int[1], Kokkos::CudaSpace> info;
  Kokkos::View<int[1], Kokkos::SharedHostPinnedSpace> host;
  Vector<std::int32_t, Cuda> reported;                   // empty: calls wait
  std::unique_ptr<SolverThroughHost<Cuda>> host_solver;  // null: cuSOLVER decomposes
};

template <>
Solver<Cuda>::Solver(const Cuda& exec) : state_(std::make_unique<State>(exec)) {}
template <>
Solver<Cuda>::~Solver() = default;
template <>
Solver<Cuda>::Solver(Solver&&) noexcept = default;
template <>
bool Solver<Cuda>::leave_to_host() {
  return !left_to_host.exchange(true);
}
template <>
void Solver<Cuda>::report_to(Vector<std::int32_t, Cuda> info) {
  state_->reported = info;
  if (state_->host_solver) state_->host_solver->report_to(info);
}

template <>
template <class T>
void Solver<Cuda>::declare_eigh(Workspace<Cuda>& workspace, std::size_t d) {
  if (d > 0) declare<EighScratch<T>>(workspace, Handle(), d);
}

template <>
template <class T>
bool Solver<Cuda>::eigh(Matrix<const T, Cuda> a, Matrix<T, Cuda> vectors, Vector<T, Cuda> values,
                        Workspace<Cuda>& workspace) {
  if (state_->host_solver) return state_->host_solver->eigh<T>(a, vectors, values);
  const std::size_t d = a.extent(0);
  require_eigh_shapes(a, vectors, values);
  if (d == 0) return true;
  const auto frame = workspace.frame();
  const EighScratch<T> s(workspace, state_->handle, d);
  copy(state_->exec, a.data(), d * d, s.rows.data());
  check_cusolver(syevd(state_->handle, as_int(d), s.rows.data(), s.rising.data(), s.work.data(), as_int(s.work.size()),
                       state_->answer()),
                 "syevd");
  if (!state_->good()) return false;
  make_falling(state_->exec, 1, d, s.rows.data(), s.rising.data(), vectors.data(), values.data());
  state_->finish();
  return true;
}

#if CUSOLVER_VERSION >= 11701
template <>
template <class T>
void Solver<Cuda>::declare_eigh_batch(Workspace<Cuda>& workspace, std::size_t count, std::size_t d) const {
  if (count * d == 0 || state_->host_solver) return;
  declare<EighBatchScratch<T>>(workspace, count, d, batch_bytes<T>(state_->handle, state_->params, count, d).device);
}

template <>
template <class T>
void Solver<Cuda>::eigh_batch(Matrix<T, Cuda> a, Matrix<T, Cuda> vectors, Matrix<T, Cuda> values,
                              Vector<std::int32_t, Cuda> info, Workspace<Cuda>& workspace) {
  if (state_->host_solver) return state_->host_solver->eigh_batch<T>(a, vectors, values, info);
  require_eigh_batch(a, vectors, values, info);
  const std::size_t count = values.extent(0), d = values.extent(1);
  if (count * d == 0) return;
  const auto n = static_cast<std::int64_t>(d);
  const BatchBytes bytes = batch_bytes<T>(state_->handle, state_->params, count, d);
  if (state_->on_host.size() < bytes.host) state_->on_host.resize(bytes.host);
  const auto frame = workspace.frame();
  const EighBatchScratch<T> s(workspace, count, d, bytes.device);
  check_cusolver(cusolverDnXsyevBatched(state_->handle, state_->params, CUSOLVER_EIG_MODE_VECTOR,
                                        CUBLAS_FILL_MODE_LOWER, n, type_of<T>, a.data(), n, type_of<T>, s.rising.data(),
                                        type_of<T>, s.work.data(), bytes.device, state_->on_host.data(), bytes.host,
                                        info.data(), static_cast<std::int64_t>(count)),
                 "syevBatched");
  make_falling(state_->exec, count, d, a.data(), s.rising.data(), vectors.data(), values.data());
}
#else  // one after another
template <>
template <class T>
void Solver<Cuda>::declare_eigh_batch(Workspace<Cuda>& workspace, std::size_t, std::size_t d) const {
  declare_eigh<T>(workspace, d);
}

template <>
template <class T>
void Solver<Cuda>::eigh_batch(Matrix<T, Cuda> a, Matrix<T, Cuda> vectors, Matrix<T, Cuda> values,
                              Vector<std::int32_t, Cuda> info, Workspace<Cuda>& workspace) {
  require_eigh_batch(a, vectors, values, info);
  const std::size_t d = values.extent(1);
  const Vector<std::int32_t, Cuda> others = state_->reported;
  for (std::size_t i = 0; i < info.extent(0); ++i) {
    report_to(Vector<std::int32_t, Cuda>(info.data() + i, 1));
    eigh<T>(stacked_at(a, i, d), stacked_at(vectors, i, d), Vector<T, Cuda>(values.data() + i * d, d), workspace);
  }
  report_to(others);
}
#endif

template <>
template <class T>
void Solver<Cuda>::declare_qr(Workspace<Cuda>& workspace, std::size_t m, std::size_t n, std::size_t p) {
  if (p == 0) return;
  const auto frame = workspace.frame();
  const QrColumns<T> columns(workspace, m, p);
  declare_qr_columns<T>(workspace, m, n, p);
}

template <>
template <class T>
bool Solver<Cuda>::qr(Matrix<const T, Cuda> a, Matrix<T, Cuda> q, Workspace<Cuda>& workspace) {
  if (state_->host_solver) return state_->host_solver->qr<T>(a, q);
  const std::size_t m = a.extent(0), n = a.extent(1), p = q.extent(1);
  require_qr_shapes(a, q);
  if (p == 0) return true;
  const auto frame = workspace.frame();
  const Matrix<T, Cuda> columns = QrColumns<T>(workspace, m, p).columns;
  transpose(state_->exec, a.data(), m, n, columns.data());
  qr_columns<T>(n, columns, workspace);
  transpose(state_->exec, columns.data(), p, m, q.data());
  state_->finish();
  return true;
}

template <>
template <class T>
void Solver<Cuda>::declare_qr_columns(Workspace<Cuda>& workspace, std::size_t m, std::size_t n, std::size_t p) {
  if (p > 0) declare<QrScratch<T>>(workspace, Handle(), m, n, p);
}

// Both calls find a solution for whatever they are given: their info tells of arguments alone, and so does the status.
template <>
template <class T>
bool Solver<Cuda>::qr_columns(std::size_t n, Matrix<T, Cuda> columns, Workspace<Cuda>& workspace) {
  if (state_->host_solver) return state_->host_solver->qr_columns<T>(n, columns);
  const std::size_t m = columns.extent(1), p = columns.extent(0);
  require_qr_columns(n, columns);
  if (p == 0) return true;
  const auto frame = workspace.frame();
  const cusolverDnHandle_t handle = state_->handle;
  const QrScratch<T> s(workspace, handle, m, n, p);
  const int size = as_int(s.work.size());
  int* const info = state_->info.data();
  if (n > 0)
    check_cusolver(geqrf(handle, as_int(m), as_int(n), columns.data(), s.tau.data(), s.work.data(), size, info),
                   "geqrf");
  check_cusolver(
      orgqr(handle, as_int(m), as_int(p), as_int(n), columns.data(), s.tau.data(), s.work.data(), size, info), "orgqr");
  state_->finish();
  return true;
}

template <>
void Solver<Cuda>::declare_svd(Workspace<Cuda>& workspace, std::size_t m, std::size_t n) {
  if (std::min(m, n) > 0) declare<SvdScratch>(workspace, Handle(), m, n);
}

template <>
bool Solver<Cuda>::svd(Matrix<const double, Cuda> a, Matrix<double, Cuda> left, Vector<double, Cuda> values,
                       Matrix<double, Cuda> right, Workspace<Cuda>& workspace) {
  if (state_->host_solver) return state_->host_solver->svd(a, left, values, right);
  const std::size_t m = a.extent(0), n = a.extent(1), k = std::min(m, n), longer = std::max(m, n);
  require_svd_shapes(a, left, values, right);
  if (k == 0) return true;
  const auto frame = workspace.frame();
  const SvdScratch s(workspace, state_->handle, m, n);
  // cuSOLVER wants at least as many rows as columns: A^T (n, m), which is A as it lies, or A. The vectors of the longer
  // side come as columns, those of the shorter one as rows of their transpose, which is row-major for us.
  const bool wide = n >= m;
  if (wide)
    copy(state_->exec, a.data(), m * n, s.input.data());
  else
    transpose(state_->exec, a.data(), m, n, s.input.data());
  check_cusolver(cusolverDnDgesvd(state_->handle, 'S', 'S', as_int(longer), as_int(k), s.input.data(), as_int(longer),
                                  values.data(), s.rows.data(), as_int(longer), wide ? left.data() : right.data(),
                                  as_int(k), s.work.data(), as_int(s.work.size()), nullptr, state_->answer()),
                 "gesvd");
  if (!state_->good()) return false;
  transpose(state_->exec, s.rows.data(), k, longer, wide ? right.data() : left.data());
  state_->finish();
  return true;
}

#define SESTINA_SOLVER(T)                                                                                         \
  template bool Solver<Cuda>::eigh<T>(Matrix<const T, Cuda>, Matrix<T, Cuda>, Vector<T, Cuda>, Workspace<Cuda>&); \
  template void Solver<Cuda>::declare_eigh<T>(Workspace<Cuda>&, std::size_t);                                     \
  template void Solver<Cuda>::eigh_batch<T>(Matrix<T, Cuda>, Matrix<T, Cuda>, Matrix<T, Cuda>,                    \
                                            Vector<std::int32_t, Cuda>, Workspace<Cuda>&);                        \
  template void Solver<Cuda>::declare_eigh_batch<T>(Workspace<Cuda>&, std::size_t, std::size_t) const;            \
  template bool Solver<Cuda>::qr<T>(Matrix<const T, Cuda>, Matrix<T, Cuda>, Workspace<Cuda>&);                    \
  template void Solver<Cuda>::declare_qr<T>(Workspace<Cuda>&, std::size_t, std::size_t, std::size_t);             \
  template bool Solver<Cuda>::qr_columns<T>(std::size_t, Matrix<T, Cuda>, Workspace<Cuda>&);                      \
  template void Solver<Cuda>::declare_qr_columns<T>(Workspace<Cuda>&, std::size_t, std::size_t, std::size_t);
SESTINA_SOLVER(float)
SESTINA_SOLVER(double)

}  // namespace sestina
