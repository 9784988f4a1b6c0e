#include "core/optimizer/refresh.hpp"

#include <chrono>
#include <cmath>
#include <type_traits>

#include "kernels/columns.hpp"
#include "kernels/inverse_root.hpp"
#include "kernels/matrix_update.hpp"
#include "kernels/reduce.hpp"

namespace sestina {
namespace {

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

  void publish(Matrix<T, Space> from, Matrix<float, Space> to) {
    convert<Space, T, float>(lane.exec, flat<const T, Space>(from), flat<float, Space>(to));
  }

  bool finite(Vector<const T, Space> x) { return std::isfinite(sum_of_squares<Space, T>(lane.exec, x, workspace)); }

  // Libraries that go wrong without saying so leave NaN or columns of another length; those bases must not get out.
  bool orthonormal(Matrix<const T, Space> q) {
    constexpr double tolerance = 1e-3;
    const double squares = sum_of_squares<Space, T>(lane.exec, flat<const T, Space>(q), workspace);
    return std::abs(squares - static_cast<double>(d)) <= tolerance * static_cast<double>(d);
  }
};

template <class Space, class T>
bool eigen_basis(Attempt<Space, T>& a) {
  const Matrix<const T, Space> factor = a.input(a.job.factor);
  const Matrix<T, Space> basis = a.square();
  const Vector<T, Space> values = a.workspace.template take<T>(a.d);
  if (!a.lane.solver.template eigh<T>(factor, basis, values, a.workspace)) return false;
  if (!a.orthonormal(basis) || !a.finite(values)) return false;
  a.publish(basis, a.job.basis);
  if (a.job.values.extent(0) > 0) convert<Space, T, float>(a.lane.exec, values, a.job.values);
  return true;
}

template <class Space>
void copy_order(const Space& exec, Vector<const std::int32_t, Space> from, Vector<std::int32_t, Space> to) {
  const Kokkos::RangePolicy<Space> all(exec, 0, from.extent(0));
  Kokkos::parallel_for(
      "copy_order", all, KOKKOS_LAMBDA(std::size_t i) { to(i) = from(i); });
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
  if (!a.finite(flat<const T, Space>(product))) return false;
  if (sorted) {
    column_dots<Space, T>(a.lane.exec, old, product, quotients);
    order_falling<Space>(a.lane.exec, quotients, order);
    permute_columns<Space, T>(a.lane.exec, product, order, basis);
  }
  if (!a.lane.solver.template qr<T>(basis, basis, a.workspace) || !a.orthonormal(basis)) return false;
  if (valued) {  // q^T K q of the new columns
    const auto frame = a.workspace.frame();
    const Matrix<T, Space> scratch = a.square();
    a.lane.gemm.template operator()<T, T>(Op::none, Op::none, 1, factor, basis, 0, scratch);
    column_dots<Space, T>(a.lane.exec, basis, scratch, quotients);
    convert<Space, double, float>(a.lane.exec, quotients, a.job.values);
  }
  a.publish(basis, a.job.basis);
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
  if (keeps_basis && job.method != RefreshMethod::inverse_root_newton) a.publish(basis, job.basis);
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

template <class Space>
void give_up(Lane<Space>& lane, const RefreshJob<Space>& job, std::int64_t& failures) {
  ++failures;
  ++lane.refresh_failures;
  const RefreshPolicy& policy = lane.refresh_policy;
  const std::size_t d = job.factor.extent(0);
  if (policy.dump) {
    std::vector<float> values(d * d);
    const Vector<float, Serial> to(values.data(), values.size());
    Kokkos::deep_copy(lane.exec, to, flat<const float, Space>(job.factor));
    lane.exec.fence("refresh");
    policy.dump(std::string(job.name), values, d);
  }
  if (failures > policy.max_failures)
    fail(ExitCode::diverged, "{} refreshes of {} ({} x {}) in a row failed, {} are allowed", failures, job.name, d, d,
         policy.max_failures);
}

}  // namespace

template <class Space>
Refreshed refresh(Lane<Space>& lane, const RefreshJob<Space>& job, std::int64_t& failures) {
  const auto start = std::chrono::steady_clock::now();
  const double squares = sum_of_squares<Space, float>(lane.exec, flat<const float, Space>(job.factor), lane.workspace);
  Refreshed result = Refreshed::done;
  if (squares == 0)
    result = Refreshed::not_needed;
  else if (!std::isfinite(squares) ||
           !(attempt<float, Space>(lane, lane.workspace, job) || attempt_in_double(lane, job)))
    result = Refreshed::kept;
  lane.exec.fence("refresh");
  lane.refresh_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (result == Refreshed::kept)
    give_up(lane, job, failures);
  else
    failures = 0;
  if (result == Refreshed::done) ++lane.published;
  return result;
}

template <class Space>
std::size_t refresh_workspace_bytes(RefreshMethod method, std::size_t d) {
  return attempt_bytes<float, Space>(method, d) + reduce_workspace_bytes<Space>(d * d);
}

#define SESTINA_REFRESH(Space)                                                              \
  template Refreshed refresh<Space>(Lane<Space>&, const RefreshJob<Space>&, std::int64_t&); \
  template std::size_t refresh_workspace_bytes<Space>(RefreshMethod, std::size_t);
SESTINA_INSTANTIATE_LANES(SESTINA_REFRESH)

}  // namespace sestina
