#include "core/optimizer/refresh/port.hpp"

#include <algorithm>

#include "core/optimizer/refresh/copy_queue.hpp"
#include "kernels/base/seconds_spent.hpp"
#include "kernels/blas/reduce.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

// What a job gives, while it is written: updates pin it for reading alone.
struct Written {
  template <class Space>
  Written(Pager* pager, const RefreshJob<Space>& job) : basis(pager, job.basis.data()), root(pager, job.root.data()) {}
  Pin basis, root;
};

}  // namespace

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
      make_task(state, s);
    }
    sides_.push_back(std::move(s));
  }
}

template <class Space>
void RefreshPort<Space>::make_task(MatrixState<Space>& state, SideState& s) {
  const RefreshTask::Room& room = s.side.room;
  RefreshTask::Memory memory;
  memory.basis = state.room("sestina::new_basis of " + s.side.name, s.side.snapshot, room.basis);
  memory.root = state.room("sestina::new_root of " + s.side.name, s.side.snapshot, room.root);
  s.on_host = std::make_shared<OnHost>();
  OnHost& here = *s.on_host;
  here.state = state.storage();
  here.order = decltype(here.order)("sestina::new_order", room.order);
  memory.order = here.order.data();
  s.task = std::make_shared<RefreshTask>(room, memory, s.on_host);
  s.task->name = s.side.name;
  if constexpr (is_host<Space>) return;
  here.factor = decltype(here.factor)("sestina::snapshot on the host", s.snapshot.size());
  here.basis = decltype(here.basis)("sestina::basis on the host", room.basis);
  here.arrived = {"sestina::snapshot_arrived", 1};
  s.task->set_arrival([&here] { return here.arrived.arrived(0); });
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
void RefreshPort<Space>::forget() {
  SESTINA_REQUIRE(staleness_ == 0, "refreshes on their way to a state that starts over");
  updates_ = sent_ = 0;
  std::fill(own_counters_.begin(), own_counters_.end(), 0);
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
void RefreshPort<Space>::release(Stream<Space>& stream) {
  sent_ = 0;
  if (stream.refresh.workers == nullptr) return;
  for (SideState& s : sides_)
    if (!s.task->idle()) wait(stream, s);
}

template <class Space>
void RefreshPort<Space>::add_tasks(std::vector<const WorkerTask*>& tasks) const {
  for (const SideState& s : sides_)
    if (s.task && !s.task->idle()) tasks.push_back(s.task.get());
}

template <class Space>
Refreshed RefreshPort<Space>::run(Stream<Space>& stream, std::size_t side, std::int64_t t,
                                  const RefreshJob<Space>& job) {
  const SideCounts counts = sides_[side].counts();
  Refreshed result = Refreshed::done;
  const Written written(stream.pager.get(), job);
  if (!queue_refresh(stream, job, counts)) {
    result = compute_refresh(stream, job);
    judge_refresh(stream, job, result, counts.failures);
  }
  if (result == Refreshed::done) counts.book(t);
  return result;
}

template <class Space>
void RefreshPort<Space>::send(Stream<Space>& stream, std::size_t side, std::int64_t t, const RefreshJob<Space>& job) {
  SideState& s = sides_[side];
  if (*s.dispatched > 0) return;  // one at a time; only a fork with another period comes here
  const SecondsSpent spent(stream.refresh.seconds.copies);
  const Pin pin(stream.pager.get(), s.snapshot.data(), Pager::Need::room);
  convert<Space, float, float>(stream.exec, flat<const float, Space>(job.factor), flat<float, Space>(s.snapshot));
  *s.dispatched = t;
  submit(stream, s, job);
}

// Without workers the job is put off: it runs on the stream when its result is to be seen.
template <class Space>
void RefreshPort<Space>::submit(Stream<Space>& stream, SideState& s, const RefreshJob<Space>& job) {
  if (stream.refresh.workers == nullptr) return;
  RefreshJob<Space> snapshot = job;
  snapshot.factor = s.snapshot;
  if constexpr (is_host<Space>) {
    s.task->prepare(snapshot, snapshot.factor.data(), snapshot.basis.data());
  } else {
    copy_to_host(stream, s, snapshot);
    s.task->prepare(snapshot, s.on_host->factor.data(), s.on_host->basis.data());
  }
  s.task->set_pager(stream.pager);
  s.task->deadline = *s.dispatched + staleness_;
  s.task->cost = static_cast<double>(s.snapshot.size()) *
                 static_cast<double>(std::min(s.snapshot.extent(0), s.snapshot.extent(1)));
  stream.refresh.workers->submit(s.task);
}

// After what the device has so far, in addition to what it gets next. The worker that takes the job waits for it.
template <class Space>
void RefreshPort<Space>::copy_to_host(Stream<Space>& stream, SideState& s, const RefreshJob<Space>& job) {
  OnHost& here = *s.on_host;
  const Pin pin(stream.pager.get(), job.factor.data(), Pager::Need::reading);
  const Space& queue = stream.refresh.copies->space();
  stream.refresh.copies->follow(stream.exec);
  Kokkos::deep_copy(queue, here.factor, flat<const float, Space>(job.factor));
  if (job.basis.size() > 0)
    Kokkos::deep_copy(queue, here.basis, Vector<const float, Space>(flat<float, Space>(job.basis)));
  here.arrived.send(queue, 0);
}

template <class Space>
Refreshed RefreshPort<Space>::resolve(Stream<Space>& stream, std::size_t side, std::int64_t t, RefreshJob<Space> job) {
  SideState& s = sides_[side];
  const std::int64_t from = *s.dispatched;
  if (stream.refresh.workers != nullptr && s.task->idle()) submit(stream, s, job);  // the run was resumed
  const bool ready = s.task->done();
  if (t < from + staleness_ && !(eager_ && ready)) return Refreshed::not_needed;
  job.factor = s.snapshot;
  const Refreshed result = take(stream, s, job);
  *s.dispatched = 0;
  const Pin looked_at(result == Refreshed::kept ? stream.pager.get() : nullptr, s.snapshot.data(),
                      Pager::Need::reading);
  judge_refresh(stream, job, result, s.side.failures);
  if (result == Refreshed::done) s.counts().book(from);
  return result;
}

template <class Space>
void RefreshPort<Space>::wait(Stream<Space>& stream, SideState& s) {
  if (!is_host<Space> && !s.on_host->arrived.arrived(0)) stream.refresh.copies->space().fence("refresh");
  stream.refresh.workers->wait(*s.task);
  s.task->collect();
}

template <class Space>
Refreshed RefreshPort<Space>::take(Stream<Space>& stream, SideState& s, const RefreshJob<Space>& job) {
  if (stream.refresh.workers == nullptr) {
    const Pin pin(stream.pager.get(), s.snapshot.data(), Pager::Need::reading);
    const Written written(stream.pager.get(), job);
    return compute_refresh(stream, job);
  }
  {
    const SecondsSpent spent(stream.refresh.seconds.waits);
    wait(stream, s);
  }
  stream.refresh.seconds.workers += s.task->seconds();
  if (s.task->outcome() == Refreshed::done) publish(stream, s.task->job(), job);
  return s.task->outcome();
}

template <class Space>
void RefreshPort<Space>::publish(Stream<Space>& stream, const RefreshJob<Serial>& from, const RefreshJob<Space>& to) {
  const SecondsSpent spent(stream.refresh.seconds.copies);
  const Pin basis(stream.pager.get(), from.new_basis.data(), Pager::Need::reading),
      root(stream.pager.get(), from.root.data(), Pager::Need::reading);
  const Written written(stream.pager.get(), to);
  if constexpr (is_host<Space>) {
    const auto copy = [&](Matrix<const float, Space> x, Matrix<float, Space> y) {
      if (y.size() > 0) convert<Space, float, float>(stream.exec, flat<const float, Space>(x), flat<float, Space>(y));
    };
    copy(from.new_basis, to.basis);
    copy(from.root, to.root);
    std::copy_n(from.order.data(), from.order.extent(0), to.order.data());
  } else {  // the worker's next job waits for a copy after these
    const auto upload = [&](const auto* x, const auto& y) {
      using T = std::decay_t<decltype(*x)>;
      if (y.size() > 0)
        Kokkos::deep_copy(stream.exec, Vector<T, Space>(y.data(), y.size()), Vector<const T, Serial>(x, y.size()));
    };
    upload(from.new_basis.data(), to.basis);
    upload(from.root.data(), to.root);
    upload(from.order.data(), to.order);
  }
}

#define SESTINA_REFRESH_PORT(Space) template class RefreshPort<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_REFRESH_PORT)

}  // namespace sestina
