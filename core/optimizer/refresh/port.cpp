#include "core/optimizer/refresh/port.hpp"

#include <algorithm>

#include "core/optimizer/refresh/copy_queue.hpp"
#include "kernels/base/threads.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

// A job to be run here: its outputs are pinned to be written, where updates pin them for reading alone.
template <class Space>
struct JobHere {
  explicit JobHere(const RefreshRequest<Space>& asked)
      : basis(asked.basis.write()), root(asked.root.write()), job(asked.job) {
    job.basis = asked.basis.read();
    job.new_basis = basis.view();
    job.root = root.view();
  }
  WriteGuard<Matrix<float, Space>> basis, root;
  RefreshJob<Space> job;
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
      s.snapshot = state.array(s.side.snapshot);
      s.form = {s.side.d, options.snapshot_bf16};
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
  for (SideState& s : sides_) s.room_has = 0;
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
                                  const RefreshRequest<Space>& request) {
  const SideCounts counts = sides_[side].counts();
  Refreshed result = Refreshed::done;
  const JobHere<Space> here(request);
  if (!queue_refresh(stream, here.job, counts)) {
    result = compute_refresh(stream, here.job);
    judge_refresh(stream, here.job, result, counts.failures);
  }
  if (result == Refreshed::done) counts.book(t);
  return result;
}

template <class Space>
void RefreshPort<Space>::send(Stream<Space>& stream, std::size_t side, std::int64_t t,
                              const RefreshRequest<Space>& request) {
  SideState& s = sides_[side];
  if (*s.dispatched > 0) return;  // one at a time; this happens only in a fork with another period
  const SecondsSpent spent(stream.refresh.seconds.copies);
  const auto snapshot = s.snapshot.write(Pager::Need::room);
  if (s.form.d > 0)
    pack_snapshot<Space>(stream.exec, s.form, request.job.factor, snapshot.view());
  else
    convert<Space, float, float>(stream.exec, flat<const float, Space>(request.job.factor),
                                 flat<float, Space>(snapshot.view()));
  *s.dispatched = t;
  submit(stream, s, request);
}

// Submits the job. Without workers it is put off: it runs on the stream when its result is to be seen.
template <class Space>
void RefreshPort<Space>::submit(Stream<Space>& stream, SideState& s, const RefreshRequest<Space>& request) {
  if (stream.refresh.workers == nullptr) return;
  const std::size_t rows = s.snapshot.extent(0), cols = s.snapshot.extent(1), d = request.basis.extent(0);
  if constexpr (is_host<Space>) {
    s.task->prepare(request, s.snapshot.template as<Serial>(rows, cols), s.form,
                    request.basis.template as<Serial>(d, d));
  } else {
    copy_to_host(stream, s, request);
    const StateArray<Serial> factor(Matrix<float, Serial>(s.on_host->factor.data(), rows, cols), nullptr);
    s.task->prepare(request, factor, s.form, s.task->room_for_basis(d));
  }
  s.task->deadline = *s.dispatched + staleness(stream);
  const auto m = static_cast<double>(s.form.d > 0 ? s.form.d : rows),
             n = static_cast<double>(s.form.d > 0 ? s.form.d : cols);
  s.task->cost = m * n * std::min(m, n);
  stream.refresh.workers->submit(s.task);
}

// Copies after what the device has so far, while it does what it gets next. The worker that takes the job waits for it.
template <class Space>
void RefreshPort<Space>::copy_to_host(Stream<Space>& stream, SideState& s, const RefreshRequest<Space>& request) {
  OnHost& here = *s.on_host;
  const Pin pin = s.snapshot.pin();
  const Space& queue = stream.refresh.copies->space();
  stream.refresh.copies->follow(stream.exec);
  Kokkos::deep_copy(queue, here.factor, flat<const float, Space>(s.snapshot.read()));
  if (request.basis.size() > 0 && (s.room_has == 0 || s.room_has != *s.computed_from)) {
    using Pinned = Kokkos::View<float*, Kokkos::LayoutRight, HostSide<Space>, Kokkos::MemoryUnmanaged>;
    const auto room = s.task->room_for_basis(request.basis.extent(0)).write(Pager::Need::room);
    Kokkos::deep_copy(queue, Pinned(room.view().data(), request.basis.size()),
                      flat<const float, Space>(request.basis.read()));
    s.room_has = *s.computed_from;
  }
  here.arrived.send(queue, 0);
}

template <class Space>
struct RefreshPort<Space>::WholeFactor {
  WholeFactor(const Space& exec, const SideState& s) : pin(s.snapshot.pin()), view(s.snapshot.read()) {
    if (s.form.d == 0) return;
    memory = decltype(memory)("sestina::unpacked_snapshot", s.form.d, s.form.d);
    unpack_snapshot<Space>(exec, s.form, s.snapshot.read(), memory);
    view = memory;
  }
  Pin pin;
  Kokkos::View<float**, Kokkos::LayoutRight, typename Space::memory_space> memory;
  Matrix<const float, Space> view;
};

template <class Space>
Refreshed RefreshPort<Space>::resolve(Stream<Space>& stream, std::size_t side, std::int64_t t,
                                      RefreshRequest<Space> request) {
  SideState& s = sides_[side];
  const std::int64_t from = *s.dispatched;
  if (stream.refresh.workers != nullptr && s.task->idle()) submit(stream, s, request);  // the run was resumed
  const bool ready = s.task->done();
  if (t < from + staleness(stream) && !(eager_ && ready)) return Refreshed::not_needed;
  const Refreshed result = take(stream, s, request);
  *s.dispatched = 0;
  if (result == Refreshed::kept) {
    const WholeFactor looked_at(stream.exec, s);
    request.job.factor = looked_at.view;
    judge_refresh(stream, request.job, result, s.side.failures);
    return result;
  }
  judge_refresh(stream, request.job, result, s.side.failures);
  if (result == Refreshed::done) {
    s.counts().book(from);
    if (stream.refresh.workers != nullptr) s.room_has = *s.computed_from;
  }
  return result;
}

template <class Space>
void RefreshPort<Space>::wait(Stream<Space>& stream, SideState& s) {
  if (!is_host<Space> && !s.on_host->arrived.arrived(0)) stream.refresh.copies->space().fence("refresh");
  stream.refresh.workers->wait(*s.task);
  s.task->collect();
}

template <class Space>
Refreshed RefreshPort<Space>::take(Stream<Space>& stream, SideState& s, RefreshRequest<Space> request) {
  if (stream.refresh.workers == nullptr) {
    const WholeFactor factor(stream.exec, s);
    request.job.factor = factor.view;
    const JobHere<Space> here(request);
    return compute_refresh(stream, here.job);
  }
  {
    const SecondsSpent spent(stream.refresh.seconds.waits);
    wait(stream, s);
  }
  stream.refresh.seconds.workers += s.task->seconds();
  if (s.task->outcome() == Refreshed::done) publish(stream, *s.task, request);
  return s.task->outcome();
}

template <class Space>
void RefreshPort<Space>::publish(Stream<Space>& stream, const RefreshTask& from, const RefreshRequest<Space>& to) {
  const SecondsSpent spent(stream.refresh.seconds.copies);
  const Pin new_basis = from.new_basis().pin(), new_root = from.new_root().pin();
  const JobHere<Space> here(to);
  if constexpr (is_host<Space>) {
    const auto copy = [&](Matrix<const float, Space> x, Matrix<float, Space> y) {
      if (y.size() > 0) convert<Space, float, float>(stream.exec, flat<const float, Space>(x), flat<float, Space>(y));
    };
    copy(from.new_basis().read(), here.basis.view());
    copy(from.new_root().read(), here.root.view());
    std::copy_n(from.order().data(), from.order().extent(0), to.job.order.data());
  } else {  // the worker's next job waits for a copy that comes after these
    const auto upload = [&](const auto& x, const auto& y) {
      using T = std::decay_t<decltype(*y.data())>;
      if (y.size() > 0)
        Kokkos::deep_copy(stream.exec, Vector<T, Space>(y.data(), y.size()),
                          Vector<const T, Serial>(x.data(), y.size()));
    };
    upload(from.new_basis().read(), here.basis.view());
    upload(from.new_root().read(), here.root.view());
    upload(from.order(), to.job.order);
  }
}

#define SESTINA_REFRESH_PORT(Space) template class RefreshPort<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_REFRESH_PORT)

}  // namespace sestina
