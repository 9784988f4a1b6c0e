#include "core/optimizer/refresh/refresh.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/optimizer/refresh/attempt.hpp"
#include "core/optimizer/refresh/refresh_batch.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/eigen.hpp"
#include "kernels/optimizer/inverse_root.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

// Takes memory for an input in numbers of type T where they are not floats.
template <class T, class Space>
Matrix<T, Space> take_wide(Workspace<Space>& workspace, std::size_t d) {
  return std::is_same_v<T, float> ? Matrix<T, Space>() : workspace.template take<T>(d, d);
}

// The memory of each method for a factor (d, d).
template <class Space, class T>
struct EigenPieces {
  EigenPieces(Workspace<Space>& workspace, std::size_t d)
      : factor(take_wide<T>(workspace, d)),
        basis(workspace.template take<T>(d, d)),
        values(workspace.template take<T>(d)) {}
  Matrix<T, Space> factor, basis;
  Vector<T, Space> values;
};
template <class Space, class T>
struct PowerPieces {
  PowerPieces(Workspace<Space>& workspace, std::size_t d, bool sorted)
      : factor(take_wide<T>(workspace, d)),
        old(take_wide<T>(workspace, d)),
        product(workspace.template take<T>(d, d)),
        columns(workspace.template take<T>(d, d)),
        quotients(workspace.template take<double>(d)),
        order(workspace.template take<std::int32_t>(sorted ? d : 0)) {}
  Matrix<T, Space> factor, old, product, columns;
  Vector<double, Space> quotients;
  Vector<std::int32_t, Space> order;
};
template <class Space, class T>
struct RootPieces {
  RootPieces(Workspace<Space>& workspace, std::size_t d)
      : factor(take_wide<T>(workspace, d)),
        basis(workspace.template take<T>(d, d)),
        root(workspace.template take<T>(d, d)) {}
  Matrix<T, Space> factor, basis, root;
};
template <class Space>
struct LeadingPieces {
  LeadingPieces(Workspace<Space>& workspace, BasisForm form, std::size_t d, std::size_t rank)
      : basis(workspace.template take<float>(d, columns_for(form, d, rank))) {}
  // Returns the columns of the basis from which a projector of this rank is taken.
  static std::size_t columns_for(BasisForm form, std::size_t d, std::size_t rank) {
    return form == BasisForm::svd ? d : rank;
  }
  Matrix<float, Space> basis;
};

template <class Space, class T>
bool eigen_basis(Attempt<Space, T>& a) {
  const EigenPieces<Space, T> p(a.workspace, a.d);
  const Matrix<const T, Space> factor = a.input(a.job.factor, p.factor);
  const Matrix<T, Space> basis = p.basis;
  const Vector<T, Space> values = p.values;
  return a.stream.solver.template eigh<T>(factor, basis, values, a.workspace) && a.publish_basis(basis, values);
}

template <class Space>
void make_failed(const Space& exec, Vector<double, Space> verdict) {
  const Kokkos::RangePolicy<Space> one(exec, 0, 1);
  Kokkos::parallel_for(
      "failed", one, KOKKOS_LAMBDA(std::size_t) { verdict(0) = static_cast<double>(Verdict::failed); });
}

Refreshed result_of(Verdict verdict) {
  if (verdict == Verdict::zero_factor) return Refreshed::not_needed;
  return verdict == Verdict::good ? Refreshed::done : Refreshed::kept;
}

// Adds shift trace(K) Q to K Q; the trace goes through `trace` (at least 1).
template <class Space, class T>
void add_shift(const Space& exec, double shift, Matrix<const T, Space> factor, Matrix<const T, Space> basis,
               Vector<double, Space> trace, Matrix<T, Space> product) {
  const std::size_t d = factor.extent(0);
  trace_to<Space, T>(exec, factor, trace);
  for_elements(
      "add_shift", exec, d, d, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const T by = static_cast<T>(shift * trace(0));
        for (std::size_t j = begin; j < end; ++j) product(i, j) += by * basis(i, j);
      });
}

template <class Space, class T>
bool power_qr(Attempt<Space, T>& a) {
  const bool sorted = a.job.order.extent(0) > 0;
  const PowerPieces<Space, T> p(a.workspace, a.d, sorted);
  const Matrix<const T, Space> factor = a.input(a.job.factor, p.factor), old = a.input(a.job.basis, p.old);
  const Matrix<T, Space> product = p.product, columns = p.columns;
  const Vector<double, Space> quotients = p.quotients;
  a.stream.gemm.template operator()<T, T>(Op::none, Op::none, 1, factor, old, 0, product);
  if (a.job.shift > 0) add_shift<Space, T>(a.stream.exec, a.job.shift, factor, old, quotients, product);
  if (!a.finite(flat<const T, Space>(product))) return false;
  if (sorted) {
    column_dots<Space, T>(a.stream.exec, old, product, quotients);
    order_falling<Space>(a.stream.exec, quotients, p.order);
  }
  columns_as_rows<Space, T>(a.stream.exec, product, p.order, columns);
  if (!a.stream.solver.template qr_columns<T>(a.d, columns, a.workspace) || !a.orthonormal(columns)) return false;
  a.judge();
  publish_columns<Space, T>(a.stream.exec, a.verdict, columns, a.job.new_basis);
  if (sorted) publish_order<Space>(a.stream.exec, a.verdict, p.order, a.job.order);
  return true;
}

template <class Space, class T>
bool inverse_root(Attempt<Space, T>& a) {
  const RefreshJob<Space>& job = a.job;
  const RootRule rule = root_rule(job);
  const RootTools<Space> tools = a.tools();
  const RootPieces<Space, T> p(a.workspace, a.d);
  const Matrix<const T, Space> factor = a.input(job.factor, p.factor);
  const Matrix<T, Space> basis = p.basis, root = p.root;
  bool good = false;
  if (job.method == RefreshMethod::inverse_root_qr) {
    convert<Space, float, T>(a.stream.exec, flat<const float, Space>(job.basis), flat<T, Space>(basis));
    good = inverse_root_qr<Space, T>(tools, rule, factor, basis, root);
  } else if (job.method == RefreshMethod::inverse_root_eigh) {
    good = inverse_root_eigh<Space, T>(tools, rule, factor, basis, root);
  } else {
    return inverse_root_newton<Space, T>(tools, rule, factor, root) && a.publish_root({}, root);
  }
  return good && a.publish_root(basis, root);
}

template <class T, class Space>
bool attempt(Stream<Space>& stream, Workspace<Space>& workspace, const RefreshJob<Space>& job,
             Vector<double, Space> verdict = {}, const JudgedSums<Space>& sums = {}) {
  const auto frame = workspace.frame();
  Attempt<Space, T> a{stream, workspace, job, verdict, sums};
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

// Takes the memory of an attempt in type T.
template <class T, class Space>
void declare_attempt(Workspace<Space>& workspace, RefreshMethod method, std::size_t d, bool sorted) {
  const auto frame = workspace.frame();
  switch (method) {
    case RefreshMethod::eigen_basis: {
      const EigenPieces<Space, T> pieces(workspace, d);
      Solver<Space>::template declare_eigh<T>(workspace, d);
      return declare<SumScratch<Space>>(workspace, d * d);
    }
    case RefreshMethod::power_qr: {
      const PowerPieces<Space, T> pieces(workspace, d, sorted);
      Solver<Space>::template declare_qr_columns<T>(workspace, d, d, d);
      return declare<SumScratch<Space>>(workspace, d * d);
    }
    case RefreshMethod::inverse_root_eigh:
    case RefreshMethod::inverse_root_qr:
    case RefreshMethod::inverse_root_newton: {
      const RootPieces<Space, T> pieces(workspace, d);
      declare_inverse_root<Space, T>(workspace, d);
      return declare<SumScratch<Space>>(workspace, d * d);
    }
    case RefreshMethod::leading_vectors:
      break;  // declare_leading_vectors()
  }
}

template <class Space>
bool attempt_in_double(Stream<Space>& stream, const RefreshJob<Space>& job, Vector<double, Space> verdict = {},
                       const JudgedSums<Space>& sums = {}) {
  stream.exec.fence("refresh");
  // This is rare, and twice as large as the stream's workspace: it has memory of its own.
  Workspace<Space> wide(bytes_taken<Space>([&](Workspace<Space>& counter) {
    declare_attempt<double, Space>(counter, job.method, job.factor.extent(0), job.order.extent(0) > 0);
  }));
  const bool good = attempt<double, Space>(stream, wide, job, verdict, sums);
  stream.exec.fence("refresh");
  return good;
}

// Makes a projector, with signs that depend on the vectors alone: moments outlive the projector.
template <class Space>
Refreshed leading_vectors(Stream<Space>& stream, const RefreshJob<Space>& job) {
  const auto frame = stream.workspace.frame();
  const std::size_t d = job.factor.extent(job.right ? 1 : 0), rank = job.root.extent(job.right ? 0 : 1);
  const Matrix<float, Space> basis = LeadingPieces<Space>(stream.workspace, job.form, d, rank).basis, none;
  if (!cold_bases<Space>(stream, job.form, job.factor, job.right ? none : basis, job.right ? basis : none))
    return Refreshed::kept;
  leading_columns<Space>(stream.exec, basis, job.right, job.root);
  return Refreshed::done;
}

template <class Space>
Refreshed run(Stream<Space>& stream, const RefreshJob<Space>& job) {
  const double squares =
      sum_of_squares<Space, float>(stream.exec, flat<const float, Space>(job.factor), stream.workspace);
  if (squares == 0) return Refreshed::not_needed;
  if (job.method == RefreshMethod::leading_vectors) return leading_vectors(stream, job);
  const bool good = std::isfinite(squares) &&
                    (attempt<float, Space>(stream, stream.workspace, job) || attempt_in_double(stream, job));
  return good ? Refreshed::done : Refreshed::kept;
}

// Returns whether a space can judge: inverse roots by Newton iteration decide on their way, and so do projectors.
bool decides_at_the_end(RefreshMethod method) {
  return method != RefreshMethod::inverse_root_newton && method != RefreshMethod::leading_vectors;
}
template <class Space>
bool judged_by_space(const Stream<Space>& stream, RefreshMethod method) {
  return stream.refresh.checks.by_space() && decides_at_the_end(method);
}

// Runs a job in type T, which leaves its verdict in the space. Everything after a bad number there is computed in vain.
template <class T, class Space>
void judge_there(Stream<Space>& stream, const RefreshJob<Space>& job, Vector<double, Space> verdict) {
  const auto frame = stream.workspace.frame();
  const JudgedSums<Space> sums(stream.workspace, job.factor.extent(0));
  squares_of_chunks<Space, float>(stream.exec, flat<const float, Space>(job.factor), reduce_chunk, sums.factor);
  const auto& info = stream.refresh.checks.solver;
  stream.solver.report_to(Vector<std::int32_t, Space>(info.data(), info.extent(0)));
  bool good = false;
  if constexpr (std::is_same_v<T, float>)
    good = attempt<float, Space>(stream, stream.workspace, job, verdict, sums);
  else
    good = attempt_in_double(stream, job, verdict, sums);
  if (!good) make_failed<Space>(stream.exec, verdict);  // a library on the host has answered at once
  stream.solver.report_to({});
}

// Runs a job with one wait.
template <class Space>
Refreshed run_and_wait(Stream<Space>& stream, const RefreshJob<Space>& job) {
  RefreshChecks<Space>& checks = stream.refresh.checks;
  const auto fetched = [&] {
    checks.verdict.fetch(stream.exec, "refresh");
    return static_cast<Verdict>(static_cast<int>(checks.verdict[0]));
  };
  checks.watch.start();
  judge_there<float>(stream, job, checks.verdict.at(0));
  checks.watch.stop();
  Verdict verdict = fetched();
  stream.refresh.seconds.waits += checks.watch.seconds();
  if (verdict == Verdict::failed) {
    judge_there<double>(stream, job, checks.verdict.at(0));
    verdict = fetched();
  }
  return result_of(verdict);
}

template <class Space>
void dump(Stream<Space>& stream, const RefreshJob<Space>& job) {
  if (!stream.refresh.policy.dump || job.factor.extent(0) != job.factor.extent(1)) return;
  const std::size_t d = job.factor.extent(0);
  std::vector<float> values(d * d);
  const Vector<float, Serial> to(values.data(), values.size());
  Kokkos::deep_copy(stream.exec, to, flat<const float, Space>(job.factor));
  stream.exec.fence("refresh");
  stream.refresh.policy.dump(std::string(job.name), values, d);
}

}  // namespace

template <class Space>
Refreshed compute_refresh(Stream<Space>& stream, const RefreshJob<Space>& job) {
  if (judged_by_space(stream, job.method)) return run_and_wait(stream, job);
  if constexpr (!is_host<Space>) stream.exec.fence("refresh");  // the time of a job is not that of work before it
  stream.refresh.checks.watch.start();
  const Refreshed result = run(stream, job);
  stream.refresh.checks.watch.stop();
  stream.exec.fence("refresh");
  stream.refresh.seconds.waits += stream.refresh.checks.watch.seconds();
  return result;
}

template <class Space>
bool queue_refresh(Stream<Space>& stream, const RefreshJob<Space>& job, const SideCounts& counts) {
  const bool failed_before = counts.failures == nullptr || *counts.failures > 0;  // then it is tried in fp64 too
  if (!stream.refresh.queued.on() || failed_before || !judged_by_space(stream, job.method)) return false;
  const typename QueuedRefreshes<Space>::Booking booking{job.name, job.factor.extent(0), counts, *counts.computed_from};
  if (stream.refresh.batch != nullptr && RefreshBatch<Space>::takes(job.method))
    stream.refresh.batch->add(job, booking);
  else
    queue_job(stream, job, booking);
  return true;
}

template <class Space>
void queue_job(Stream<Space>& stream, const RefreshJob<Space>& job,
               const typename QueuedRefreshes<Space>::Booking& booking) {
  judge_there<float>(stream, job, stream.refresh.queued.start(booking));
  stream.refresh.queued.finish(stream.exec);
}

namespace {

template <class Space>
void count_failure(Stream<Space>& stream, std::string_view name, std::size_t rows, std::size_t cols,
                   std::int64_t* failures) {
  ++stream.refresh.failures;
  if (failures == nullptr || ++*failures <= stream.refresh.policy.max_failures) return;
  fail(ExitCode::diverged, "{} consecutive refreshes of {} ({} x {}) failed, allowed {}", *failures, name, rows, cols,
       stream.refresh.policy.max_failures);
}

}  // namespace

template <class Space>
bool book_refreshes(Stream<Space>& stream, std::int64_t t) {
  using Booking = typename QueuedRefreshes<Space>::Booking;
  const auto book = [&stream](const Booking& side, Verdict verdict, double seconds) {
    stream.refresh.seconds.waits += seconds;
    const Refreshed result = result_of(verdict);
    if (result != Refreshed::done) side.undo();
    if (result == Refreshed::kept) count_failure(stream, side.name, side.d, side.d, side.counts.failures);
  };
  const bool begins = stream.refresh.queued.begin_update(stream.exec, t, book);
  if (begins) stream.refresh.drift.book(stream.exec);
  return begins;
}

template <class Space>
void judge_refresh(Stream<Space>& stream, const RefreshJob<Space>& job, Refreshed result, std::int64_t* failures) {
  if (result != Refreshed::kept) {
    if (failures != nullptr) *failures = 0;
    return;
  }
  dump(stream, job);
  count_failure(stream, job.name, job.factor.extent(0), job.factor.extent(1), failures);
}

template <class Space>
Refreshed refresh(Stream<Space>& stream, const RefreshJob<Space>& job, std::int64_t& failures) {
  const Refreshed result = compute_refresh(stream, job);
  judge_refresh(stream, job, result, &failures);
  return result;
}

template <class Space>
void declare_refresh(Workspace<Space>& workspace, RefreshMethod method, std::size_t d, bool sorted) {
  const auto frame = workspace.frame();
  declare<SumScratch<Space>>(workspace, d * d);
  if (!is_host<Space> && decides_at_the_end(method)) JudgedSums<Space>(workspace, d);  // held until the frame ends
  declare_attempt<float, Space>(workspace, method, d, sorted);
}

template <class Space>
void declare_leading_vectors(Workspace<Space>& workspace, BasisForm form, std::size_t rows, std::size_t cols,
                             bool right, std::size_t rank) {
  const auto frame = workspace.frame();
  declare<SumScratch<Space>>(workspace, rows * cols);
  const std::size_t columns = LeadingPieces<Space>(workspace, form, right ? cols : rows, rank).basis.extent(1);
  declare_cold_bases<Space>(workspace, form, rows, cols, right ? 0 : columns, right ? columns : 0);
}

#define SESTINA_REFRESH(Space)                                                                               \
  template bool queue_refresh<Space>(Stream<Space>&, const RefreshJob<Space>&, const SideCounts&);           \
  template void queue_job<Space>(Stream<Space>&, const RefreshJob<Space>&,                                   \
                                 const typename QueuedRefreshes<Space>::Booking&);                           \
  template bool book_refreshes<Space>(Stream<Space>&, std::int64_t);                                         \
  template Refreshed compute_refresh<Space>(Stream<Space>&, const RefreshJob<Space>&);                       \
  template void judge_refresh<Space>(Stream<Space>&, const RefreshJob<Space>&, Refreshed, std::int64_t*);    \
  template Refreshed refresh<Space>(Stream<Space>&, const RefreshJob<Space>&, std::int64_t&);                \
  template void declare_refresh<Space>(Workspace<Space>&, RefreshMethod, std::size_t, bool);                 \
  template void declare_leading_vectors<Space>(Workspace<Space>&, BasisForm, std::size_t, std::size_t, bool, \
                                               std::size_t);
SESTINA_INSTANTIATE_LANES(SESTINA_REFRESH)

}  // namespace sestina
