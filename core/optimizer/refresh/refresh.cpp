#include "core/optimizer/refresh/refresh.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/blas/matrix_copy.hpp"
#include "kernels/blas/reduce.hpp"
#include "kernels/optimizer/columns.hpp"
#include "kernels/optimizer/inverse_root.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

// True where a job is queued and judged at its end. Inverse roots decide on their way, and wait.
template <class Space>
constexpr bool is_queued(RefreshMethod method) {
  return !is_host<Space> && (method == RefreshMethod::eigen_basis || method == RefreshMethod::power_qr);
}

// What a job works with in numbers of type T: its inputs in that type, and scratch.
template <class Space, class T>
struct Attempt {
  Lane<Space>& lane;
  Workspace<Space>& workspace;
  const RefreshJob<Space>& job;
  std::size_t d = job.factor.extent(0);

  Matrix<T, Space> square() { return workspace.template take<T>(d, d); }

  Matrix<const T, Space> input(Matrix<const float, Space> x) {
    if constexpr (std::is_same_v<T, float>) {
      return x;
    } else {
      const Matrix<T, Space> wide = square();
      convert<Space, float, T>(lane.exec, flat<const float, Space>(x), flat<T, Space>(wide));
      return wide;
    }
  }

  Matrix<float, Space> new_basis() const { return job.new_basis.extent(0) > 0 ? job.new_basis : job.basis; }

  void publish(Matrix<T, Space> from, Matrix<float, Space> to) {
    convert<Space, T, float>(lane.exec, flat<const T, Space>(from), flat<float, Space>(to));
  }

  // The answer, or on a device true: good() looks later.
  bool finite(Vector<const T, Space> x, int place) {
    if (is_queued<Space>(job.method)) return note(x, place);
    return std::isfinite(sum_of_squares<Space, T>(lane.exec, x, workspace));
  }
  bool orthonormal(Matrix<const T, Space> q) {
    if (is_queued<Space>(job.method)) return note(flat<const T, Space>(q), RefreshChecks<Space>::basis);
    return is_orthonormal(sum_of_squares<Space, T>(lane.exec, flat<const T, Space>(q), workspace));
  }

  // Whether what was queued may be published. Waits.
  bool good() {
    if (!is_queued<Space>(job.method)) return true;
    using Checks = RefreshChecks<Space>;
    lane.checks.watch.stop();
    lane.checks.values.fetch(lane.exec, "refresh");
    const auto& value = lane.checks.values;
    for (int place = 0; place < Checks::count; ++place)
      if (!std::isfinite(value[static_cast<std::size_t>(place)])) return false;
    return value[Checks::factor] > 0 && value[Checks::failures] == 0 && is_orthonormal(value[Checks::basis]);
  }

 private:
  // Libraries that go wrong without saying so leave NaN or columns of another length; those bases must not get out.
  bool is_orthonormal(double squares) const {
    constexpr double tolerance = 1e-3;
    return std::abs(squares - static_cast<double>(d)) <= tolerance * static_cast<double>(d);
  }
  bool note(Vector<const T, Space> x, int place) {
    sum_of_squares_to<Space, T>(lane.exec, x, workspace, lane.checks.values.at(static_cast<std::size_t>(place)));
    return true;
  }
};

template <class Space, class T>
bool eigen_basis(Attempt<Space, T>& a) {
  const Matrix<const T, Space> factor = a.input(a.job.factor);
  const Matrix<T, Space> basis = a.square();
  const Vector<T, Space> values = a.workspace.template take<T>(a.d);
  if (!a.lane.solver.template eigh<T>(factor, basis, values, a.workspace)) return false;
  if (!a.orthonormal(basis) || !a.finite(values, RefreshChecks<Space>::eigenvalues) || !a.good()) return false;
  a.publish(basis, a.new_basis());
  if (a.job.values.extent(0) > 0) convert<Space, T, float>(a.lane.exec, values, a.job.values);
  return true;
}

template <class Space>
void copy_order(const Space& exec, Vector<const std::int32_t, Space> from, Vector<std::int32_t, Space> to) {
  const Kokkos::RangePolicy<Space> all(exec, 0, from.extent(0));
  Kokkos::parallel_for(
      "copy_order", all, KOKKOS_LAMBDA(std::size_t i) { to(i) = from(i); });
}

template <class Space>
void clear(const Space& exec, Vector<double, Space> values) {
  const Kokkos::RangePolicy<Space> all(exec, 0, values.extent(0));
  Kokkos::parallel_for(
      "clear", all, KOKKOS_LAMBDA(std::size_t i) { values(i) = 0; });
}

template <class Space, class T>
bool power_qr(Attempt<Space, T>& a) {
  const bool sorted = a.job.order.extent(0) > 0, valued = a.job.values.extent(0) > 0;
  const Matrix<const T, Space> factor = a.input(a.job.factor), old = a.input(a.job.basis);
  const Matrix<T, Space> product = a.square();
  const Matrix<T, Space> basis = sorted ? a.square() : product;
  const Vector<double, Space> quotients = a.workspace.template take<double>(a.d);
  const Vector<std::int32_t, Space> order = a.workspace.template take<std::int32_t>(a.d);
  a.lane.gemm.template operator()<T, T>(Op::none, Op::none, 1, factor, old, 0, product);
  if (!a.finite(flat<const T, Space>(product), RefreshChecks<Space>::product)) return false;
  if (sorted) {
    column_dots<Space, T>(a.lane.exec, old, product, quotients);
    order_falling<Space>(a.lane.exec, quotients, order);
    permute_columns<Space, T>(a.lane.exec, product, order, basis);
  }
  if (!a.lane.solver.template qr<T>(basis, basis, a.workspace) || !a.orthonormal(basis)) return false;
  if (valued) {  // q^T K q of the new columns
    if (!a.good()) return false;
    const auto frame = a.workspace.frame();
    const Matrix<T, Space> scratch = a.square();
    a.lane.gemm.template operator()<T, T>(Op::none, Op::none, 1, factor, basis, 0, scratch);
    column_dots<Space, T>(a.lane.exec, basis, scratch, quotients);
    convert<Space, double, float>(a.lane.exec, quotients, a.job.values);
  }
  if (!valued && !a.good()) return false;
  a.publish(basis, a.new_basis());
  if (sorted) copy_order<Space>(a.lane.exec, order, a.job.order);
  return true;
}

template <class Space, class T>
bool inverse_root(Attempt<Space, T>& a) {
  const RefreshJob<Space>& job = a.job;
  const bool keeps_basis = job.basis.extent(0) > 0;
  const RootRule rule{job.exponent, job.scale, job.eps, job.perturb_before, job.tolerance, job.max_iterations};
  const RootTools<Space> tools{a.lane.exec, a.lane.gemm, a.lane.solver, a.workspace};
  const Matrix<const T, Space> factor = a.input(job.factor);
  const Matrix<T, Space> basis = a.square(), root = a.square();
  bool good = false;
  if (job.method == RefreshMethod::inverse_root_qr) {
    convert<Space, float, T>(a.lane.exec, flat<const float, Space>(job.basis), flat<T, Space>(basis));
    good = inverse_root_qr<Space, T>(tools, rule, factor, basis, root) && a.orthonormal(basis);
  } else if (job.method == RefreshMethod::inverse_root_eigh) {
    good = inverse_root_eigh<Space, T>(tools, rule, factor, basis, root) && a.orthonormal(basis);
  } else {
    good = inverse_root_newton<Space, T>(tools, rule, factor, root);
  }
  if (!good) return false;
  a.publish(root, job.root);
  if (keeps_basis && job.method != RefreshMethod::inverse_root_newton) a.publish(basis, a.new_basis());
  return true;
}

template <class T, class Space>
bool attempt(Lane<Space>& lane, Workspace<Space>& workspace, const RefreshJob<Space>& job) {
  const auto frame = workspace.frame();
  Attempt<Space, T> a{lane, workspace, job};
  switch (job.method) {
    case RefreshMethod::eigen_basis:
      return eigen_basis(a);
    case RefreshMethod::power_qr:
      return power_qr(a);
    case RefreshMethod::inverse_root_eigh:
    case RefreshMethod::inverse_root_qr:
    case RefreshMethod::inverse_root_newton:
      return inverse_root(a);
    case RefreshMethod::leading_vectors:
      break;  // in fp64 from the start: leading_vectors()
  }
  return false;
}

// Scratch of an attempt in type T.
template <class T, class Space>
std::size_t attempt_bytes(RefreshMethod method, std::size_t d) {
  using W = Workspace<Space>;
  const std::size_t square = W::template bytes<T>(d * d), sums = reduce_workspace_bytes<Space>(d * d);
  const std::size_t inputs = std::is_same_v<T, float> ? 0 : 2 * square;
  switch (method) {
    case RefreshMethod::eigen_basis:
      return inputs + square + W::template bytes<T>(d) + sums + Solver<Space>::template eigh_bytes<T>(d);
    case RefreshMethod::power_qr:
      return inputs + 3 * square + W::template bytes<double>(d) + W::template bytes<std::int32_t>(d) + sums +
             Solver<Space>::template qr_bytes<T>(d, d, d);
    case RefreshMethod::inverse_root_eigh:
    case RefreshMethod::inverse_root_qr:
    case RefreshMethod::inverse_root_newton:
      return inputs + 2 * square + inverse_root_bytes<Space, T>(d);
    case RefreshMethod::leading_vectors:
      break;
  }
  return 0;
}

template <class Space>
bool attempt_in_double(Lane<Space>& lane, const RefreshJob<Space>& job) {
  lane.exec.fence("refresh");
  // Rare, and twice as large as what the lane keeps: memory for this once.
  Workspace<Space> wide(attempt_bytes<double, Space>(job.method, job.factor.extent(0)));
  const bool good = attempt<double, Space>(lane, wide, job);
  lane.exec.fence("refresh");
  return good;
}

// With signs that depend on the vectors alone: moments outlive the projector.
template <class Space>
Refreshed leading_vectors(Lane<Space>& lane, const RefreshJob<Space>& job) {
  const auto frame = lane.workspace.frame();
  const std::size_t d = job.factor.extent(job.right ? 1 : 0);
  const Matrix<float, Space> basis = lane.workspace.template take<float>(d, d), none;
  if (!cold_bases<Space>(lane, job.factor, job.right ? none : basis, job.right ? basis : none)) return Refreshed::kept;
  leading_columns<Space>(lane.exec, basis, job.right, job.root);
  return Refreshed::done;
}

template <class Space>
Refreshed run(Lane<Space>& lane, const RefreshJob<Space>& job) {
  const double squares = sum_of_squares<Space, float>(lane.exec, flat<const float, Space>(job.factor), lane.workspace);
  if (squares == 0) return Refreshed::not_needed;
  if (job.method == RefreshMethod::leading_vectors) return leading_vectors(lane, job);
  const bool good =
      std::isfinite(squares) && (attempt<float, Space>(lane, lane.workspace, job) || attempt_in_double(lane, job));
  return good ? Refreshed::done : Refreshed::kept;
}

// The same on a device, which is waited for once, before the result is published. What follows a bad number there is
// computed in vain.
template <class Space>
Refreshed run_queued(Lane<Space>& lane, const RefreshJob<Space>& job) {
  using Checks = RefreshChecks<Space>;
  const auto& values = lane.checks.values;
  const auto start = [&] {
    const Vector<double, Space> all = values.at(0, Checks::count);
    clear<Space>(lane.exec, all);
    sum_of_squares_to<Space, float>(lane.exec, flat<const float, Space>(job.factor), lane.workspace,
                                    values.at(Checks::factor));
  };
  lane.checks.watch.start();
  lane.solver.report_to(values.at(Checks::failures));
  start();
  bool good = attempt<float, Space>(lane, lane.workspace, job);
  const double squares = values[Checks::factor];
  if (!good && squares != 0 && std::isfinite(squares)) {
    start();
    good = attempt_in_double(lane, job);
  }
  lane.solver.report_to({});
  lane.refresh_seconds += lane.checks.watch.seconds();
  if (squares == 0) return Refreshed::not_needed;
  return good ? Refreshed::done : Refreshed::kept;
}

template <class Space>
void dump(Lane<Space>& lane, const RefreshJob<Space>& job) {
  if (!lane.refresh_policy.dump || job.factor.extent(0) != job.factor.extent(1)) return;
  const std::size_t d = job.factor.extent(0);
  std::vector<float> values(d * d);
  const Vector<float, Serial> to(values.data(), values.size());
  Kokkos::deep_copy(lane.exec, to, flat<const float, Space>(job.factor));
  lane.exec.fence("refresh");
  lane.refresh_policy.dump(std::string(job.name), values, d);
}

}  // namespace

template <class Space>
Refreshed compute_refresh(Lane<Space>& lane, const RefreshJob<Space>& job) {
  if (is_queued<Space>(job.method)) return run_queued(lane, job);
  if constexpr (!is_host<Space>) lane.exec.fence("refresh");  // whose time is not that of work before it
  lane.checks.watch.start();
  const Refreshed result = run(lane, job);
  lane.checks.watch.stop();
  lane.exec.fence("refresh");
  lane.refresh_seconds += lane.checks.watch.seconds();
  return result;
}

template <class Space>
void judge_refresh(Lane<Space>& lane, const RefreshJob<Space>& job, Refreshed result, std::int64_t* failures) {
  if (result != Refreshed::kept) {
    if (failures != nullptr) *failures = 0;
    return;
  }
  ++lane.refresh_failures;
  dump(lane, job);
  if (failures == nullptr || ++*failures <= lane.refresh_policy.max_failures) return;
  fail(ExitCode::diverged, "{} consecutive refreshes of {} ({} x {}) failed, allowed {}", *failures, job.name,
       job.factor.extent(0), job.factor.extent(1), lane.refresh_policy.max_failures);
}

template <class Space>
Refreshed refresh(Lane<Space>& lane, const RefreshJob<Space>& job, std::int64_t& failures) {
  const Refreshed result = compute_refresh(lane, job);
  judge_refresh(lane, job, result, &failures);
  return result;
}

template <class Space>
std::size_t refresh_workspace_bytes(RefreshMethod method, std::size_t d) {
  return attempt_bytes<float, Space>(method, d) + reduce_workspace_bytes<Space>(d * d);
}

template <class Space>
std::size_t leading_vectors_bytes(std::size_t rows, std::size_t cols, bool right) {
  const std::size_t d = right ? cols : rows;
  return std::max(reduce_workspace_bytes<Space>(rows * cols),
                  Workspace<Space>::template bytes<float>(d * d) + cold_bases_workspace_bytes<Space>(rows, cols));
}

#define SESTINA_REFRESH(Space)                                                                          \
  template Refreshed compute_refresh<Space>(Lane<Space>&, const RefreshJob<Space>&);                    \
  template void judge_refresh<Space>(Lane<Space>&, const RefreshJob<Space>&, Refreshed, std::int64_t*); \
  template Refreshed refresh<Space>(Lane<Space>&, const RefreshJob<Space>&, std::int64_t&);             \
  template std::size_t refresh_workspace_bytes<Space>(RefreshMethod, std::size_t);                      \
  template std::size_t leading_vectors_bytes<Space>(std::size_t, std::size_t, bool);
SESTINA_INSTANTIATE_LANES(SESTINA_REFRESH)

}  // namespace sestina
