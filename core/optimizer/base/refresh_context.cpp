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

}  // namespace

template <class Space>
void make_verdict(const Space& exec, const RefreshChecks<Space>& checks, std::size_t d, Vector<double, Space> verdict) {
  using Checks = RefreshChecks<Space>;
  const Vector<double, Space> found = checks.values.at(0, Checks::judged);
  const Kokkos::RangePolicy<Space> one(exec, 0, 1);
  Kokkos::parallel_for(
      "verdict", one, KOKKOS_LAMBDA(std::size_t) {
        bool good = found(Checks::failures) == 0 && is_orthonormal(found(Checks::basis), d);
        for (int i = 0; i < Checks::judged; ++i) good = good && Kokkos::isfinite(found(i));
        const double factor = found(Checks::factor);
        const Verdict made = factor == 0                 ? Verdict::zero_factor
                             : !Kokkos::isfinite(factor) ? Verdict::factor_not_finite
                             : good                      ? Verdict::good
                                                         : Verdict::failed;
        verdict(0) = static_cast<double>(made);
      });
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

#define SESTINA_VERDICT_OF(Space, From)                                                                           \
  template void publish_values<Space, From>(const Space&, Vector<const double, Space>, Vector<const From, Space>, \
                                            Vector<float, Space>);
#define SESTINA_VERDICT(Space)                                                                                      \
  SESTINA_VERDICT_OF(Space, float)                                                                                  \
  SESTINA_VERDICT_OF(Space, double)                                                                                 \
  template void make_verdict<Space>(const Space&, const RefreshChecks<Space>&, std::size_t, Vector<double, Space>); \
  template void publish_order<Space>(const Space&, Vector<const double, Space>, Vector<const std::int32_t, Space>,  \
                                     Vector<std::int32_t, Space>);                                                  \
  template class DriftChecks<Space>;                                                                                \
  template class QueuedRefreshes<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_VERDICT)

}  // namespace sestina
