#include "core/optimizer/refresh/port.hpp"

#include <algorithm>

#include "kernels/blas/reduce.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {

template <class Space>
RefreshPort<Space>::RefreshPort(MatrixState<Space>& state, const MatrixOptions& options,
                                const std::vector<RefreshSide>& sides)
    : staleness_(options.refresh_staleness), eager_(options.refresh_eager) {
  const bool asynchronous = staleness_ > 0 && !sides.empty();
  if (!asynchronous) own_counters_.resize(2 * sides.size());
  for (std::size_t i = 0; i < sides.size(); ++i) {
    SideState s{.side = sides[i]};
    s.dispatched = asynchronous ? &state.counter("dispatched") + i : &own_counters_[2 * i];
    s.computed_from = asynchronous ? &state.counter("computed_from") + i : &own_counters_[2 * i + 1];
    if (asynchronous) {
      s.snapshot = state.matrix(s.side.snapshot);
      if constexpr (is_host<Space>) {
        float* const basis = state.room("sestina::new_basis of " + s.side.name, s.side.snapshot, s.side.room.basis);
        float* const root = state.room("sestina::new_root of " + s.side.name, s.side.snapshot, s.side.room.root);
        s.task = std::make_shared<RefreshTask>(s.side.room, basis, root, state.storage());
        s.task->name = s.side.name;
      }
    }
    sides_.push_back(std::move(s));
  }
}

template <class Space>
bool RefreshPort<Space>::in_flight() const {
  return std::any_of(sides_.begin(), sides_.end(), [](const SideState& s) { return *s.dispatched > 0; });
}

template <class Space>
void RefreshPort<Space>::renew(std::int64_t t) {
  updates_ = t;
  for (SideState& s : sides_) *s.computed_from = 1 + t;
}

template <class Space>
RefreshAges RefreshPort<Space>::ages() const {
  RefreshAges ages;
  for (const SideState& s : sides_) {
    if (*s.computed_from == 0) continue;
    const std::int64_t age = updates_ + 1 - *s.computed_from;
    ages.add({age, age, 1});
  }
  return ages;
}

template <class Space>
std::int64_t RefreshPort<Space>::sent() const {
  std::int64_t sent = sent_;
  for (const SideState& s : sides_) sent = std::max(sent, *s.dispatched);
  return sent;
}

template <class Space>
std::int64_t RefreshPort<Space>::newness() const {
  std::int64_t sum = 0;
  for (const SideState& s : sides_) sum += *s.computed_from;
  return sum;
}

template <class Space>
void RefreshPort<Space>::release(Lane<Space>& lane) {
  sent_ = 0;
  if constexpr (is_host<Space>) {
    if (lane.workers == nullptr) return;
    for (SideState& s : sides_) {
      if (s.task->idle()) continue;
      lane.workers->wait(*s.task);
      s.task->collect();
    }
  }
}

template <class Space>
Refreshed RefreshPort<Space>::run(Lane<Space>& lane, std::size_t side, std::int64_t t, const RefreshJob<Space>& job) {
  SideState& s = sides_[side];
  const Refreshed result = compute_refresh(lane, job);
  judge_refresh(lane, job, result, s.side.failures);
  if (result == Refreshed::done) *s.computed_from = 1 + t;
  return result;
}

template <class Space>
void RefreshPort<Space>::send(Lane<Space>& lane, std::size_t side, std::int64_t t, const RefreshJob<Space>& job) {
  SideState& s = sides_[side];
  if (*s.dispatched > 0) return;  // one at a time; only a fork with another period comes here
  const Pin pin(lane.pager.get(), s.snapshot.data(), Pager::Need::room);
  convert<Space, float, float>(lane.exec, flat<const float, Space>(job.factor), flat<float, Space>(s.snapshot));
  *s.dispatched = t;
  submit(lane, s, job);
}

// Without workers the job is put off: it runs on the lane when its result is to be seen.
template <class Space>
void RefreshPort<Space>::submit(Lane<Space>& lane, SideState& s, const RefreshJob<Space>& job) {
  if constexpr (is_host<Space>) {
    if (lane.workers == nullptr) return;
    RefreshJob<Space> snapshot = job;
    snapshot.factor = s.snapshot;
    s.task->prepare(snapshot);
    s.task->set_pager(lane.pager);
    s.task->deadline = *s.dispatched + staleness_;
    s.task->cost = static_cast<double>(s.snapshot.size()) *
                   static_cast<double>(std::min(s.snapshot.extent(0), s.snapshot.extent(1)));
    lane.workers->submit(s.task);
  }
}

template <class Space>
Refreshed RefreshPort<Space>::settle(Lane<Space>& lane, std::size_t side, std::int64_t t, RefreshJob<Space> job) {
  SideState& s = sides_[side];
  const std::int64_t from = *s.dispatched;
  bool ready = false;
  if constexpr (is_host<Space>) {
    if (lane.workers != nullptr && s.task->idle()) submit(lane, s, job);  // the run was resumed
    ready = s.task->done();
  }
  if (t < from + staleness_ && !(eager_ && ready)) return Refreshed::not_needed;
  job.factor = s.snapshot;
  const Refreshed result = take(lane, s, job);
  *s.dispatched = 0;
  const Pin looked_at(result == Refreshed::kept ? lane.pager.get() : nullptr, s.snapshot.data());
  judge_refresh(lane, job, result, s.side.failures);
  if (result == Refreshed::done) *s.computed_from = 1 + from;
  return result;
}

template <class Space>
Refreshed RefreshPort<Space>::take(Lane<Space>& lane, SideState& s, const RefreshJob<Space>& job) {
  if constexpr (is_host<Space>) {
    if (lane.workers != nullptr) {
      lane.checks.watch.start();
      lane.workers->wait(*s.task);
      s.task->collect();
      if (s.task->outcome() == Refreshed::done) {
        const RefreshJob<Serial>& from = s.task->job();
        const Pin basis(lane.pager.get(), from.new_basis.data()), root(lane.pager.get(), from.root.data());
        const auto publish = [&](Matrix<const float, Space> x, Matrix<float, Space> y) {
          if (y.size() > 0) convert<Space, float, float>(lane.exec, flat<const float, Space>(x), flat<float, Space>(y));
        };
        publish(from.new_basis, job.basis);
        publish(from.root, job.root);
        std::copy_n(from.order.data(), from.order.extent(0), job.order.data());
      }
      lane.checks.watch.stop();
      lane.refresh_seconds += lane.checks.watch.seconds();
      return s.task->outcome();
    }
  }
  const Pin pin(lane.pager.get(), s.snapshot.data());
  return compute_refresh(lane, job);
}

#define SESTINA_REFRESH_PORT(Space) template class RefreshPort<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_REFRESH_PORT)

}  // namespace sestina
