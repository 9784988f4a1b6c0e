#include "app/train/run_trace.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "io/report/trace_write.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::int64_t warm_up = 2;  // updates in which memory is still allocated
// Events of one rank, of 56 bytes each: enough for an update of some hundred layers in a few micro-batches.
constexpr std::int64_t events_of_update = 20000, most_events = 200000;

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

void RunTrace::add_workers(int stage, WorkerPool* pool, int workers) {
  if (!trace_ || pool == nullptr) return;
  const std::string of_stage = stage < 0 ? "" : fmt::format(" of stage {}", stage);
  for (int i = 0; i < workers; ++i) {
    const int row = trace_->add_row(fmt::format("refresh worker {}{}", i, of_stage));
    if (i == 0) workers_.push_back({pool, row});
  }
  pool->record();
}

void RunTrace::take_jobs() {
  for (const Workers& workers : workers_)
    for (const WorkerPool::Span& job : workers.pool->take_spans())
      trace_->add(workers.first_row + job.worker, job.name, job.begin, job.end);
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
