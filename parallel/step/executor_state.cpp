// Builds an executor, and handles what it keeps between updates: weights, optimizer state, and what an asynchronous
// pipeline has in flight.
#include "parallel/step/executor.hpp"

#include "core/memory/pager.hpp"

namespace sestina {

Executor::Executor(const StageMaker& maker, const Plan& plan, Communicator& world, Trace* trace)
    : Evaluator(maker, plan, world, trace),
      exchange_(world, plan_),
      updates_in_passes_(exchange_.lag() > 0),
      overlaps_(plan_.input.parallel.overlap_updates),
      scale_(1.0 / (static_cast<double>(plan_.input.train.global_batch) * options_.sequence)) {
  run_of_stage_.resize(at(plan_.pp));
  for (std::unique_ptr<PipelineStage>& run : maker.make_training(rank_parts())) {
    run_of_stage_[at(run->place().number)] = runs_.size();
    runs_.push_back(run.get());
    stages_.push_back(std::move(run));
  }
  first_tensor_.push_back(0);
  for (const StagePlan& stage : plan_.stages) first_tensor_.push_back(first_tensor_.back() + stage.specs.size());
  if (compares_gradients(plan_.input, pipe_, schedule_)) fresh_ = maker.make_fresh_gradients(runs_);
  const bool tied = plan_.input.model.tie_word_embeddings;
  ahead_ = forwards_ahead(schedule_);
  receives_ = receive_order(pipe_, schedule_.all, groups_.pipeline->rank(), tied);
  receives_ahead_ = receive_order(pipe_, ahead_, groups_.pipeline->rank(), tied);
  cosines_.resize(runs_.size());
  std::size_t most = 0;
  for (const StagePlan& stage : plan_.stages) most = std::max(most, stage.specs.size());
  clips_.resize(most);
  losses_.resize(at(share_.all));
  whole_.resize(first_tensor_.back() + 1 + losses_.size());
}

void Executor::initialise(std::uint64_t seed) {
  for (auto& run : runs_) run->initialise(seed);
}

void Executor::page_to(const std::shared_ptr<Pager>& pager) {
  for (auto& run : runs_) run->optimizer_control().page_to(pager);
  pager_ = pager;
}

void Executor::start_at(std::int64_t updates) {
  for (auto& run : runs_) {
    run->start_at(updates, updates);
    run->start_corrections(false);
  }
  resumed_ = false;
  first_micro_ = updates * pipe_.micros;
  origin_ = updates;
  exchange_.start_at(updates, {});
}

std::optional<PipelineState> Executor::pipeline_state() const {
  if (!updates_in_passes_) return std::nullopt;
  const ParallelOptions& parallel = plan_.input.parallel;
  PipelineState state;
  state.ahead = schedule_.ahead;
  for (const StagePlan& stage : plan_.stages) state.layers.push_back(stage.layers.begin);
  state.micros = pipe_.micros;
  state.stash = name(parallel.stash);
  state.correction = name(parallel.correction.kind);
  state.origin = origin_;
  state.started = started_;
  if (replicas_drift(parallel, plan_.input.optimizer)) state.replicas = parallel.dp;
  if (parallel.stash != ParallelOptions::Stash::on && parallel.tp > 1) state.shards = parallel.tp;
  if (parallel.clip_scope == ParallelOptions::ClipScope::global_lagged) state.norms = exchange_.norms();
  return state;
}

bool Executor::resume(std::int64_t updates, const PipelineState& was) {
  const std::optional<PipelineState> now = pipeline_state();
  if (!now || !was.fits(*now)) return false;
  for (auto& run : runs_) run->start_at(updates, was.origin);
  first_micro_ = updates * pipe_.micros;
  origin_ = was.origin;
  exchange_.start_at(updates, was.norms);
  resumed_ = true;
  if (plan_.input.parallel.stash == ParallelOptions::Stash::on || !was.started)
    return true;  // the forwards in flight are done again
  started_ = restored_ = true;
  for (auto& run : runs_) run->restored();
  return true;
}

std::vector<StateField> Executor::in_flight_fields(bool reading) const {
  std::vector<StateField> fields;
  if (!updates_in_passes_) return fields;
  for (const auto& run : runs_)
    for (StateField& field : run->in_flight_fields(started_, reading)) fields.push_back(std::move(field));
  return fields;
}

void Executor::drain(std::int64_t updates) {
  for (auto& run : runs_) {
    if (started_) run->drop_in_flight();
    run->start_at(updates, updates);
  }
  origin_ = updates;
  started_ = restored_ = false;
}

void Executor::start_averages() {
  for (auto& run : runs_) run->start_averages();
}

void Executor::swap_average() {
  for (auto& run : runs_) run->swap_average();
}

std::vector<StateField> Executor::optimizer_fields() const {
  std::vector<StateField> fields;
  for (const auto& run : runs_)
    for (StateField& field : run->optimizer_fields()) fields.push_back(std::move(field));
  return fields;
}

std::vector<StateField> Executor::fields() const {
  std::vector<StateField> all = model_fields();
  for (StateField& field : optimizer_fields()) all.push_back(std::move(field));
  return all;
}

void Executor::weights_changed() {
  for (auto& run : runs_) {
    run->weights_changed();
    if (updates_in_passes_) run->start_corrections(resumed_);
  }
}

}  // namespace sestina
