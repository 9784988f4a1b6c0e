#include "core/optimizer/matrix_set.hpp"

#include <omp.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/base/update_batches.hpp"
#include "core/optimizer/refresh/copy_queue.hpp"
#include "core/optimizer/refresh/port.hpp"
#include "core/optimizer/refresh/refresh_workers.hpp"
#include "core/optimizer/stream_share.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

// Returns the same matrix for a stream of another space with the same memory.
template <class Space, class Exec>
OwnedMatrix<Space> on_stream(const OwnedMatrix<Exec>& x) {
  return {x.name, x.gradient, x.master, x.weight, x.coded, x.rounded_later};
}

template <class Space>
std::vector<Space> stream_spaces(const Space& exec, int) {
  return {exec};
}
std::vector<Serial> stream_spaces(const Serial&, int count) {
  std::vector<Serial> spaces;
  for (int i = 0; i < count; ++i) spaces.emplace_back(Kokkos::NewInstance{});
  return spaces;
}

template <class Exec, class Space>
class StreamSet : public MatrixSet<Exec> {
 public:
  StreamSet(const std::vector<Space>& spaces, const std::vector<int>& stream_of,
            const std::vector<MatrixItem<Exec>>& items, const MatrixSetOptions& setting)
      : options_(setting.options), stream_of_(stream_of), items_(items), calls_(items.size()) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      const OwnedMatrix<Exec>& matrix = items[i].matrix;
      matrices_.push_back(on_stream<Space>(matrix));
      const MatrixShape shape{"/optimizer/" + matrix.name, items[i].rows(), items[i].cols(), items[i].index};
      optimizers_.push_back(make_matrix_optimizer<Space>(spaces[stream_of[i]], setting.options, shape));
    }
    // The scratch is the same for all matrices of a shape, and to ask a device's library for it takes a while.
    std::map<std::tuple<std::size_t, std::size_t, bool>, std::size_t> known;
    const auto scratch_of = [&](std::size_t i) {
      const std::size_t rows = items[i].rows(), cols = items[i].cols();
      const auto [found, is_new] = known.try_emplace({rows, cols, items[i].is_copied()});
      if (is_new)
        found->second = bytes_taken<Space>([&](Workspace<Space>& counter) {
          declare_update<Space>(counter, setting.options, rows, cols, items[i].is_copied());
        });
      return found->second;
    };
    for (std::size_t stream = 0; stream < spaces.size(); ++stream) {
      std::size_t bytes = 0;
      for (std::size_t i = 0; i < items.size(); ++i)
        if (stream_of[i] == static_cast<int>(stream)) bytes = std::max(bytes, scratch_of(i));
      if constexpr (!is_host<Space>) bytes = std::max(bytes, batch_scratch());
      streams_.push_back({spaces[stream], Gemm<Space>(spaces[stream], setting.deterministic), Workspace<Space>(bytes)});
      streams_.back().nonfinite = setting.nonfinite;
      streams_.back().refresh.policy = setting.refresh;
      const double drift = setting.options.refresh_drift;
      const std::size_t jobs = is_host<Space> && drift == 0 ? 0 : needs_of(items, setting, stream).jobs;
      if constexpr (!is_host<Space>) streams_.back().refresh.queued = {spaces[stream], jobs};
      if (drift > 0) streams_.back().refresh.drift = {drift, jobs};
    }
    if (setting.options.refresh_staleness > 0) start_workers(items, setting);
  }

  // The pager is waited for, since what it still moves is memory of the matrices.
  ~StreamSet() override {
    for (auto& copies : copies_) copies->space().fence("copies");  // copies that workers wait for
    withdraw_jobs();
    workers_.reset();
    if (!pager_) return;
    for (Stream<Space>& stream : streams_) stream.exec.fence("optimizer");
    pager_->detach();
  }
  StreamSet(const StreamSet&) = delete;
  StreamSet& operator=(const StreamSet&) = delete;

  void step(std::int64_t t, double factor, double gradient_scale, std::size_t begin, std::size_t end) override {
    if (streams_.size() == 1) return run(0, t, factor, gradient_scale, begin, end);
    std::exception_ptr error;
#pragma omp parallel num_threads(static_cast <int>(streams_.size()))
    {
      for (auto stream = static_cast<std::size_t>(omp_get_thread_num()); stream < streams_.size();
           stream += static_cast<std::size_t>(omp_get_num_threads()))
        try {
          run(stream, t, factor, gradient_scale, begin, end);
        } catch (...) {
#pragma omp critical(sestina_matrix_set_error)
          error = std::current_exception();
        }
    }
    if (error) std::rethrow_exception(error);
  }

  void withhold(std::int64_t t) override {
    for (std::size_t i = 0; i < optimizers_.size(); ++i)
      if (begins_again(i, t)) {
        book_refreshes(streams_[stream_number(i)], t);
        begin_again(i);
      }
  }

  bool repeats() override {
    if (pager_ || workers_) return false;
    for (const Stream<Space>& stream : streams_)
      if (!stream.refresh.queued.empty() || !stream.refresh.drift.empty()) return false;
    const bool refreshes = find_matrix_kind(options_.kind)->refresh_every > 0;
    for (std::size_t i = 0; refreshes && i < optimizers_.size(); ++i)
      if (!optimizers_[i]->repeats(streams_[stream_number(i)].refresh.policy)) return false;
    return true;
  }

  void follow_merges(const LayerMerges* early) override { early_ = early; }

  std::vector<StateField> state() override {
    for (Stream<Space>& stream : streams_) book_refreshes(stream, std::numeric_limits<std::int64_t>::max());
    std::vector<StateField> fields;
    for (std::size_t i = 0; i < optimizers_.size(); ++i)
      for (StateField& field : optimizers_[i]->state().fields()) {
        field.saved = items_[i].saved;
        fields.push_back(std::move(field));
      }
    return fields;
  }

  RefreshSeconds take_refresh_seconds() override {
    RefreshSeconds all;
    for (Stream<Space>& stream : streams_) {
      const RefreshSeconds mine = std::exchange(stream.refresh.seconds, {});
      all.waits = std::max(all.waits, mine.waits);
      all.copies = std::max(all.copies, mine.copies);
      all.workers += mine.workers;
    }
    return all;
  }
  RefreshDrift take_refresh_drift() override {
    RefreshDrift all;
    for (Stream<Space>& stream : streams_) all.add(std::exchange(stream.refresh.drift.found, {}));
    return all;
  }
  WorkerPool* workers() override { return workers_ ? workers_->pool() : nullptr; }
  std::int64_t refresh_failures() const override {
    return std::accumulate(streams_.begin(), streams_.end(), std::int64_t{0},
                           [](std::int64_t sum, const Stream<Space>& stream) { return sum + stream.refresh.failures; });
  }
  RefreshAges ages() const override {
    RefreshAges ages;
    for (const auto& optimizer : optimizers_) ages.add(optimizer->ages());
    return ages;
  }
  void dump_failures(const RefreshDump& dump) override {
    for (Stream<Space>& stream : streams_) stream.refresh.policy.dump = dump;
  }
  void set_refresh_periods(const std::vector<std::int64_t>& periods) override {
    for (Stream<Space>& stream : streams_) stream.refresh.policy.periods = periods;
  }
  void set_refresh_staleness(std::int64_t updates) override {
    for (Stream<Space>& stream : streams_) stream.refresh.policy.staleness = updates;
  }
  void set_refresh_executors(const std::vector<std::uint8_t>& in_update) override {
    for (Stream<Space>& stream : streams_) stream.refresh.policy.in_update = in_update;
  }
  void page_to(const std::shared_ptr<Pager>& pager) override {
    std::size_t update = 0, job = 0;
    for (Stream<Space>& stream : streams_) {
      pager->watch(queue_of(stream.exec));
      if (stream.refresh.copies != nullptr) pager->watch(queue_of(stream.refresh.copies->space()));
    }
    for (const auto& optimizer : optimizers_) {
      std::size_t in_update = 0, in_refresh = 0;
      for (Page& page : optimizer->state().pages()) {
        page.pager = pager;
        pager->add(page.name, page.memory, page.bytes, !page.in_updates());
        (page.in_updates() ? in_update : in_refresh) += pager->whole(page.bytes);
      }
      update = std::max(update, in_update);
      job = std::max(job, in_refresh);
    }
    const PagedAtWork work =
        is_host<Space> ? paged_at_work(update, job, streams(), worker_count_) : paged_on_device(update, job);
    pager->need(work.updates, work.jobs);
    pager->attach();
    pager_ = pager;
  }
  int streams() const override { return static_cast<int>(streams_.size()); }
  std::size_t size() const override { return matrices_.size(); }
  const std::vector<MatrixItem<Exec>>& items() const override { return items_; }
  const std::string& kind() const override { return options_.kind; }
  const std::vector<std::int64_t>& calls() const override { return calls_; }

  std::vector<StateField> replica(std::size_t i) override {
    const RefreshPort<Space>* port = optimizers_[i]->port();
    if (port == nullptr || !port->asynchronous()) return {};
    std::vector<StateField> fields = optimizers_[i]->state().fields();
    StateField master;
    const OwnedMatrix<Space>& matrix = matrices_[i];
    master.path = "/model/" + matrix.name;
    master.shape = {static_cast<std::int64_t>(matrix.rows()), static_cast<std::int64_t>(matrix.cols())};
    master.row_end = master.shape[0];
    if (matrix.is_cut()) master.row_stride = static_cast<std::int64_t>(matrix.master.stride(0));
    master.data = matrix.master.data();
    master.on_device = !is_host<Space>;
    fields.push_back(std::move(master));
    return fields;
  }
  RefreshClock refresh_clock(std::size_t i) override {
    const RefreshPort<Space>& port = *optimizers_[i]->port();
    return {optimizers_[i]->state().counter("updates"), port.sent(), port.newness()};
  }
  void open_replica(std::size_t i) override {
    Stream<Space>& stream = streams_[stream_number(i)];
    book_refreshes(stream, std::numeric_limits<std::int64_t>::max());  // those that a device still has in its queue
    optimizers_[i]->port()->release(stream);
  }
  void close_replica(std::size_t i) override {
    const OwnedMatrix<Space>& matrix = matrices_[i];
    round_matrix<Space>(streams_[stream_number(i)].exec, matrix.master, matrix.weight);
  }

  void time_products(bool on) override {
    for (Stream<Space>& stream : streams_) {
      stream.gemm.time_products(on);
      stream.gemm.take_count();
    }
  }
  ProductCount take_products() override {
    ProductCount sum;
    for (Stream<Space>& stream : streams_) {
      const auto count = stream.gemm.take_count();
      sum.seconds = std::max(sum.seconds, count.seconds);
      sum.flops += count.flops;
    }
    return sum;
  }

 private:
  // Returns the needs of all matrices of a stream: their jobs, and the scratch of the largest.
  RefreshNeeds needs_of(const std::vector<MatrixItem<Exec>>& items, const MatrixSetOptions& setting,
                        std::size_t stream) const {
    RefreshNeeds all;
    if (find_matrix_kind(setting.options.kind)->refresh_needs == nullptr) return all;
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      if (stream_number(i) != stream) continue;
      const RefreshNeeds needs = refresh_needs(setting.options, items[i].rows(), items[i].cols());
      all.jobs += needs.jobs;
      all.scratch = std::max(all.scratch, needs.scratch);
    }
    return all;
  }
  std::size_t stream_number(std::size_t i) const { return static_cast<std::size_t>(stream_of_[i]); }

  void run(std::size_t stream, std::int64_t t, double factor, double gradient_scale, std::size_t begin,
           std::size_t end) {
    const bool begins = book_refreshes(streams_[stream], t);
    if (begins && streams_[stream].refresh.copies)
      streams_[stream].refresh.copies->lead(streams_[stream].exec);  // copies had the time of an update's passes
    const UpdateNumbers shared{t, factor, options_.schedule.decay_factor(t, factor), gradient_scale,
                               options_.schedule.momentum_at(t)};
    if constexpr (is_host<Space>) {
      for (std::size_t i = begin; i < end; ++i)
        if (stream_of_[i] == static_cast<int>(stream)) step_alone(streams_[stream], i, shared);
    } else {
      const BatchedRange<Space>& range = range_of(begin, end);
      for (const std::size_t i : range.together) {
        if (begins_again(i, t)) begin_again(i);
        ++calls_[i];
      }
      for (const auto& batch : range.batches) batch->step(streams_[stream], shared);
      for (const std::size_t i : range.alone) step_alone(streams_[stream], i, shared);
    }
  }

  // shared: lr and weight_decay are factors of each matrix's own rates.
  void step_alone(Stream<Space>& stream, std::size_t i, const UpdateNumbers& shared) {
    const InUse pinned(optimizers_[i]->state().pages());
    if (begins_again(i, shared.t)) begin_again(i);
    const UpdateNumbers numbers = with_rates(shared, items_[i].rates);
    if (items_[i].skew_block > 0)
      step_skew_block(stream, *optimizers_[i], numbers, matrices_[i], items_[i].skew_block);
    else if (matrices_[i].is_cut())
      step_cut_block(stream, *optimizers_[i], numbers, matrices_[i], options_.rules);
    else
      step_matrix(stream, *optimizers_[i], numbers, matrices_[i], options_.rules);
    ++calls_[i];
  }

  // Matrices that are updated together on a device: those of a range are found when it is first updated.
  const BatchedRange<Space>& range_of(std::size_t begin, std::size_t end) {
    const auto [place, is_new] = ranges_.try_emplace({begin, end});
    if (is_new) {
      std::vector<BatchItem<Space>> candidates;
      for (std::size_t i = 0; i < items_.size(); ++i)
        candidates.push_back({matrices_[i], items_[i].rates, optimizers_[i].get(), items_[i].is_copied()});
      place->second = batch_range<Space>(options_, candidates, begin, end);
    }
    return place->second;
  }
  std::size_t batch_scratch() const {
    std::size_t sum = 0;
    for (const MatrixItem<Exec>& item : items_)
      sum += scratch_in_batch<Space>(options_, false, item.rows(), item.cols(), item.is_copied());
    return batches_scratch(sum);
  }

  // Returns whether state starts over before update t; all earlier results are booked by then.
  bool begins_again(std::size_t i, std::int64_t t) const {
    const std::int64_t plain = updates_of_state(items_[i].reset_every, t, items_[i].reset_phase);
    return t > 1 && updates_of_state(plain, t, items_[i].resets_with, early_) == 1;
  }
  // Begins the state of a matrix again. What workers make of the old one is waited for, and dropped.
  void begin_again(std::size_t i) {
    Stream<Space>& stream = streams_[stream_number(i)];
    RefreshPort<Space>* const port = optimizers_[i]->port();
    if (port != nullptr) port->release(stream);
    optimizers_[i]->state().set_zero(stream.exec);
    if (port != nullptr) port->forget();
  }

  void start_workers(const std::vector<MatrixItem<Exec>>& items, const MatrixSetOptions& setting) {
    RefreshNeeds all;
    for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
      const RefreshNeeds needs = needs_of(items, setting, stream);
      all.jobs += needs.jobs;
      all.scratch = std::max(all.scratch, needs.scratch);
    }
    worker_count_ = setting.workers.workers;
    workers_ = setting.shared_workers ? setting.shared_workers
                                      : std::make_shared<RefreshWorkers>(setting.workers, setting.deterministic);
    workers_->expect(all.scratch, all.jobs);
    for (Stream<Space>& stream : streams_) {
      copies_.push_back(std::make_unique<CopyQueue<Space>>(stream.exec));
      stream.refresh.workers = workers_.get();
      stream.refresh.copies = copies_.back().get();
    }
  }

  // Withdraws the jobs of this stage; other stages' jobs may go on.
  void withdraw_jobs() {
    if (!workers_) return;
    std::vector<const WorkerTask*> tasks;
    for (const auto& optimizer : optimizers_)
      if (const RefreshPort<Space>* port = optimizer->port()) port->add_tasks(tasks);
    workers_->withdraw(tasks);
  }

  MatrixOptions options_;
  std::vector<int> stream_of_;
  std::vector<MatrixItem<Exec>> items_;
  std::vector<std::int64_t> calls_;
  std::vector<OwnedMatrix<Space>> matrices_;  // of the items, for the streams' space
  std::vector<std::unique_ptr<MatrixOptimizer<Space>>> optimizers_;
  std::vector<Stream<Space>> streams_;
  std::map<std::pair<std::size_t, std::size_t>, BatchedRange<Space>> ranges_;
  std::shared_ptr<Pager> pager_;  // null: all state is always in memory
  int worker_count_ = 0;
  std::vector<std::unique_ptr<CopyQueue<Space>>> copies_;  // one for each stream
  const LayerMerges* early_ = nullptr;                     // null: no layer is merged early
  std::shared_ptr<RefreshWorkers> workers_;                // null: no asynchronous refreshes
};

}  // namespace

template <class Exec>
std::unique_ptr<MatrixSet<Exec>> make_matrix_set(const Exec& exec, const std::vector<MatrixItem<Exec>>& items,
                                                 const MatrixSetOptions& setting) {
  if constexpr (is_host<Exec>) {
    std::vector<double> cost;
    for (const auto& item : items) cost.push_back(stream_cost(item.rows(), item.cols()));
    const int threads = threads_of(exec);
    const int streams = setting.threads > 0 ? setting.threads : stream_count(cost, threads);
    if (streams > 1 || threads == 1)
      return std::make_unique<StreamSet<Exec, Serial>>(stream_spaces(Serial{}, streams), balance(cost, streams), items,
                                                       setting);
  }
  return std::make_unique<StreamSet<Exec, Exec>>(stream_spaces(exec, 1), std::vector<int>(items.size(), 0), items,
                                                 setting);
}

#define SESTINA_MATRIX_SET(Exec)                                                                                     \
  template std::unique_ptr<MatrixSet<Exec>> make_matrix_set<Exec>(const Exec&, const std::vector<MatrixItem<Exec>>&, \
                                                                  const MatrixSetOptions&);
SESTINA_INSTANTIATE_SPACES(SESTINA_MATRIX_SET)

}  // namespace sestina
