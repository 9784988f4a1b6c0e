// What an executor keeps between updates: weights, optimizer state, and what an asynchronous pipeline has in flight.
#include "parallel/step/executor.hpp"

namespace sestina {

template <class Exec, class T>
void Executor<Exec, T>::initialise(std::uint64_t seed) {
  for (auto& run : runs_) {
    run->stage().initialise(seed);
    run->exchanges().initialise(plan_.input.model.initializer_range, seed);
  }
}

template <class Exec, class T>
void Executor<Exec, T>::start_at(std::int64_t updates) {
  for (auto& run : runs_) {
    run->start_at(updates, updates);
    run->start_corrections(false);
  }
  resumed_ = false;
  first_micro_ = updates * pipe_.micros;
  origin_ = updates;
  exchange_.start_at(updates, {});
}

template <class Exec, class T>
std::optional<PipelineState> Executor<Exec, T>::pipeline_state() const {
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

template <class Exec, class T>
bool Executor<Exec, T>::resume(std::int64_t updates, const PipelineState& was) {
  const std::optional<PipelineState> now = pipeline_state();
  if (!now || !was.fits(*now)) return false;
  for (auto& run : runs_) run->start_at(updates, was.origin);
  first_micro_ = updates * pipe_.micros;
  origin_ = was.origin;
  exchange_.start_at(updates, was.norms);
  resumed_ = true;
  if (plan_.input.parallel.stash == ParallelOptions::Stash::on || !was.started)
    return true;  // its forwards are done again
  started_ = restored_ = true;
  for (auto& run : runs_) run->restored();
  return true;
}

template <class Exec, class T>
std::vector<StateField> Executor<Exec, T>::in_flight_fields(bool reading) const {
  std::vector<StateField> fields;
  if (!updates_in_passes_) return fields;
  for (const auto& run : runs_)
    for (StateField& field : run->in_flight_fields(groups_.grid, started_, reading)) fields.push_back(std::move(field));
  return fields;
}

template <class Exec, class T>
void Executor<Exec, T>::drain(std::int64_t updates) {
  for (auto& run : runs_) {
    if (started_) run->drop_in_flight();
    run->start_at(updates, updates);
  }
  origin_ = updates;
  started_ = restored_ = false;
}

template <class Exec, class T>
std::vector<StateField> Executor<Exec, T>::optimizer_fields() const {
  std::vector<StateField> fields;
  for (const auto& run : runs_)
    for (StateField& field : run->exchanges().optimizer_fields()) fields.push_back(std::move(field));
  return fields;
}

template <class Exec, class T>
std::vector<StateField> Executor<Exec, T>::fields() const {
  std::vector<StateField> all = this->model_fields();
  for (StateField& field : optimizer_fields()) all.push_back(std::move(field));
  return all;
}

template <class Exec, class T>
void Executor<Exec, T>::weights_changed() {
  for (auto& run : runs_) {
    run->weights_changed();
    if (updates_in_passes_) run->start_corrections(resumed_);
  }
}

template <class Exec, class T>
std::vector<OwnedTensor<Exec, T>> Executor<Exec, T>::tensors() const {
  std::vector<OwnedTensor<Exec, T>> all;
  for (const auto& run : runs_) all.insert(all.end(), run->stage().tensors().begin(), run->stage().tensors().end());
  return all;
}

#define SESTINA_EXECUTOR(Exec, T) template class Executor<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_EXECUTOR)

}  // namespace sestina
