#include "core/optimizer/base/refresh_context.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"

namespace sestina {

namespace {

template <class Space>
KOKKOS_INLINE_FUNCTION bool is_good(const Vector<const double, Space>& verdict) {
  return verdict.extent(0) == 0 || verdict(0) == static_cast<double>(Verdict::good);
}

// Writes a verdict from the sums, and sets what the solver has left back to 0 for the next job.
template <class Space>
struct WriteVerdict {
  std::size_t d;
  Vector<std::int32_t, Space> solver;
  Vector<double, Space> verdict;

  KOKKOS_INLINE_FUNCTION void operator()(double factor, double basis, double other) const {
    const bool good = solver(0) == 0 && is_orthonormal(basis, d) && Kokkos::isfinite(other);
    const Verdict made = factor == 0                 ? Verdict::zero_factor
                         : !Kokkos::isfinite(factor) ? Verdict::factor_not_finite
                         : good                      ? Verdict::good
                                                     : Verdict::failed;
    verdict(0) = static_cast<double>(made);
    solver(0) = 0;
  }
};

}  // namespace

template <class Space>
void make_verdict(const Space& exec, const RefreshChecks<Space>& checks, const JudgedSums<Space>& sums, std::size_t d,
                  Vector<double, Space> verdict) {
  const WriteVerdict<Space> write{d, Vector<std::int32_t, Space>(checks.solver.data(), 1), verdict};
  const Vector<const double, Space> factor = sums.factor, basis = sums.basis, other = sums.other;
  if constexpr (is_host<Space>) {
    const auto total = [](const Vector<const double, Space>& x) {
      return lane_sum(x.extent(0), [&x](std::size_t i) { return x(i); });
    };
    Kokkos::parallel_for("verdict", Kokkos::RangePolicy<Space>(exec, 0, 1),
                         [=](std::size_t) { write(total(factor), total(basis), total(other)); });
  } else {
    using Teams = Kokkos::TeamPolicy<Space>;
    Kokkos::parallel_for(
        "verdict", Teams(exec, 1, sum_team<Space>), KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          double of_factor = 0, of_basis = 0, of_other = 0;
          const auto total = [&team](const Vector<const double, Space>& x, double& result) {
            Kokkos::parallel_reduce(
                Kokkos::TeamThreadRange(team, x.extent(0)), [&](std::size_t i, double& sum) { sum += x(i); }, result);
          };
          total(factor, of_factor);
          total(basis, of_basis);
          total(other, of_other);
          if (team.team_rank() == 0) write(of_factor, of_basis, of_other);
        });
  }
}

template <class Space, class From>
void publish_values(const Space& exec, Vector<const double, Space> verdict, Vector<const From, Space> x,
                    Vector<float, Space> y) {
  for_elements(
      "publish", exec, 1, x.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        if (!is_good<Space>(verdict)) return;
        for (std::size_t i = begin; i < end; ++i) y(i) = static_cast<float>(x(i));
      });
}

template <class Space, class From>
void publish_columns(const Space& exec, Vector<const double, Space> verdict, Matrix<const From, Space> x,
                     Matrix<float, Space> y) {
  const std::size_t d = x.extent(0);
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for("publish_columns", Kokkos::RangePolicy<Space>(exec, 0, band_count(d)), [=](std::size_t band) {
      if (!is_good<Space>(verdict)) return;
      read_band(x.data(), true, d, d, band, [&](std::size_t i, std::size_t j, std::size_t count, const From* from) {
        for (std::size_t c = 0; c < count; ++c) y(i, j + c) = static_cast<float>(from[c]);
      });
    });
  } else {
    Kokkos::parallel_for(
        "publish_columns", Kokkos::RangePolicy<Space>(exec, 0, d * d), KOKKOS_LAMBDA(std::size_t at) {
          if (is_good<Space>(verdict)) y(at / d, at % d) = static_cast<float>(x(at % d, at / d));
        });
  }
}

template <class Space>
void publish_order(const Space& exec, Vector<const double, Space> verdict, Vector<const std::int32_t, Space> from,
                   Vector<std::int32_t, Space> order) {
  const Kokkos::RangePolicy<Space> all(exec, 0, from.extent(0));
  Kokkos::parallel_for(
      "publish_order", all,
      KOKKOS_LAMBDA(std::size_t i) { order(i) = is_good<Space>(verdict) ? from(i) : static_cast<std::int32_t>(i); });
}

template <class Space>
QueuedRefreshes<Space>::QueuedRefreshes(const Space& exec, std::size_t jobs)
    : verdicts_("sestina::refresh_verdicts", jobs) {
  for (std::size_t i = 0; i < jobs; ++i) watches_.emplace_back(exec);
  bookings_.reserve(jobs);
}

template <class Space>
Vector<double, Space> QueuedRefreshes<Space>::start(const Booking& booking) {
  const std::size_t place = bookings_.size();
  SESTINA_REQUIRE(place < watches_.size(), "{} refreshes in one update", place + 1);
  bookings_.push_back(booking);
  watches_[place].start();
  return verdicts_.at(place);
}

template <class Space>
void QueuedRefreshes<Space>::finish(const Space& exec) {
  watches_[bookings_.size() - 1].stop();
  verdicts_.send(exec, bookings_.size() - 1);
}

template <class Space>
bool QueuedRefreshes<Space>::arrived() const {
  return verdicts_.arrived(bookings_.size() - 1);  // the last one comes after all others
}

template <class Space>
Vector<double, Space> DriftChecks<Space>::start(std::int64_t& due) {
  SESTINA_REQUIRE(due_.size() < drifts_.size(), "{} checks of drift in one update", due_.size() + 1);
  due_.push_back(&due);
  return drifts_.at(due_.size() - 1);
}

template <class Space>
void DriftChecks<Space>::finish(const Space& exec) {
  drifts_.send(exec, due_.size() - 1);
}

template <class Space>
void DriftChecks<Space>::book(const Space& exec) {
  if (due_.empty()) return;
  if (!drifts_.arrived(due_.size() - 1)) exec.fence("drift");  // the last one comes after all others
  for (std::size_t i = 0; i < due_.size(); ++i) {
    *due_[i] = drifts_[i] > bound_ ? 1 : 0;
    found.largest = std::max(found.largest, drifts_[i]);
  }
  due_.clear();
}

#define SESTINA_VERDICT_OF(Space, From)                                                                            \
  template void publish_values<Space, From>(const Space&, Vector<const double, Space>, Vector<const From, Space>,  \
                                            Vector<float, Space>);                                                 \
  template void publish_columns<Space, From>(const Space&, Vector<const double, Space>, Matrix<const From, Space>, \
                                             Matrix<float, Space>);
#define SESTINA_VERDICT(Space)                                                                                        \
  SESTINA_VERDICT_OF(Space, float)                                                                                    \
  SESTINA_VERDICT_OF(Space, double)                                                                                   \
  template void make_verdict<Space>(const Space&, const RefreshChecks<Space>&, const JudgedSums<Space>&, std::size_t, \
                                    Vector<double, Space>);                                                           \
  template void publish_order<Space>(const Space&, Vector<const double, Space>, Vector<const std::int32_t, Space>,    \
                                     Vector<std::int32_t, Space>);                                                    \
  template class DriftChecks<Space>;                                                                                  \
  template class QueuedRefreshes<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_VERDICT)

}  // namespace sestina
