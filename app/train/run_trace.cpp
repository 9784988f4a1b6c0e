#include "app/train/run_trace.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "io/report/trace_write.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::int64_t warm_up = 2;  // updates in which memory is still allocated
// Events of one rank, of 72 bytes each: enough for an update of some hundred layers in a few micro-batches.
constexpr std::int64_t events_of_update = 20000, most_events = 200000;

Trace::Kind block_kind(Pager::Event::Kind kind) {
  using Kind = Pager::Event::Kind;
  switch (kind) {
    case Kind::read:
      return Trace::Kind::block_read;
    case Kind::write:
      return Trace::Kind::block_write;
    case Kind::wait:
      return Trace::Kind::block_wait;
    case Kind::wait_aside:
      break;
  }
  return Trace::Kind::worker_wait;
}

}  // namespace

RunTrace::RunTrace(const Options& options, const std::string& run_dir, Communicator& world)
    : world_(world),
      path_(run_dir + "/trace.json"),
      label_(fmt::format("rank {} (dp {}, tp {})", world.rank(), world.rank() / options.parallel.tp,
                         world.rank() % options.parallel.tp)),
      updates_(options.metrics.trace) {
  if (updates_ > 0)
    trace_ = std::make_unique<Trace>(
        static_cast<std::size_t>(std::min(std::min(updates_, most_events) * events_of_update, most_events)));
}

void RunTrace::set_workers(WorkerPool* pool, int workers) {
  if (!trace_ || pool == nullptr || pool == workers_) return;
  workers_ = pool;
  for (int i = 0; i < workers; ++i) {
    const int row = trace_->add_row(fmt::format("refresh worker {}", i));
    if (i == 0) first_row_ = row;
  }
  pool->record();
}

void RunTrace::take_jobs() {
  if (workers_ == nullptr) return;
  for (const WorkerPool::Span& job : workers_->take_spans())
    trace_->add(first_row_ + job.worker, job.name, job.begin, job.end);
}

Pager::Counts RunTrace::take_blocks(Pager& pager, std::int64_t update) {
  if (!trace_) return pager.counts();
  const Pager::Counts counts = pager.take_events(blocks_);
  for (const Pager::Event& event : blocks_) {
    Trace::Event shown{.name = event.name, .number = update, .from = event.from, .to = event.to};
    shown.kind = block_kind(event.kind);
    if (shown.kind == Trace::Kind::worker_wait) shown.to = "worker";
    shown.value = static_cast<double>(event.bytes);
    trace_->add(shown, event.begin, event.end);
  }
  return counts;
}

void RunTrace::before_step() {
  if (!trace_) return;
  if (steps_ == warm_up) {
    world_.barrier();  // the clocks of all ranks start here
    trace_->start();
  }
  if (steps_ == warm_up + updates_) finish();
  ++steps_;
}

void RunTrace::finish() try {
  if (!trace_ || !trace_->recording()) return;
  take_jobs();
  trace_->stop();
  write_trace(path_, *trace_, world_, label_);
  spdlog::info("traced {} steps in {}", std::min(updates_, steps_ - warm_up), path_);
  if (trace_->dropped() > 0) spdlog::warn("{}: full, {} events of this rank were dropped", path_, trace_->dropped());
} catch (const Error& error) {
  if (error.code() == ExitCode::unavailable) throw;  // another rank is lost
  spdlog::warn("{}", error.what());                  // losing the trace must not stop the run
}

}  // namespace sestina
