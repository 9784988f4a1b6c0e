// What the trainer tells of its steps: the numbers that ranks send each other, loads, failures, diagnostics.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "app/train/trainer.hpp"

namespace sestina {
namespace {

// Of one stage's preconditioners (-1: of all) from now on.
void trace_ages(Trace* trace, int stage, const RefreshAges& ages) {
  if (trace == nullptr || ages.count == 0) return;
  trace->count("preconditioner age, oldest", stage, static_cast<double>(ages.max));
  trace->count("preconditioner age, mean", stage, static_cast<double>(ages.sum) / static_cast<double>(ages.count));
}

}  // namespace

static_assert(sizeof(RankStep) == RunMessages::times * sizeof(double));
static_assert(sizeof(StageAges) == RunMessages::ages * sizeof(double));

template <class Exec, class T>
void Trainer<Exec, T>::rank_step(double* numbers) {
  clock_.end(Phase::optimizer);
  RefreshSeconds refreshes;
  RefreshAges ages;
  rank_ages_.assign(rank_ages_.size(), {});
  for (std::size_t i = 0; i < executor_.stage_count(); ++i) {
    Optimizer<Exec, T>& optimizer = executor_.stage(i).optimizer();
    const RefreshSeconds spent = optimizer.take_refresh_seconds();
    refreshes.waits += spent.waits;
    refreshes.copies += spent.copies;
    refreshes.workers += spent.workers;
    const RefreshAges mine = optimizer.refresh_ages();
    ages.add(mine);
    if (rank_ages_.empty()) continue;
    const int stage = executor_.stage_number(i);
    rank_ages_[static_cast<std::size_t>(stage)] = {static_cast<double>(mine.max), static_cast<double>(mine.sum),
                                                   static_cast<double>(mine.count)};
    trace_ages(trace_.get(), stage, mine);
  }
  if (rank_ages_.empty()) trace_ages(trace_.get(), -1, ages);
  trace_.take_jobs();
  const auto seconds = executor_.take_seconds();
  clock_.move(Phase::optimizer, Phase::refresh, refreshes.waits);
  clock_.move_waits(seconds.gather, seconds.reduce, seconds.homes, seconds.update);
  update_seconds_ += clock_[Phase::optimizer] + clock_[Phase::refresh];
  ++updates_;
  const RankStep mine{clock_.seconds(),
                      static_cast<double>(peak_memory_bytes()),
                      static_cast<double>(ages.max),
                      static_cast<double>(ages.sum),
                      static_cast<double>(ages.count),
                      step_joules(),
                      refreshes.copies,
                      refreshes.workers};
  std::memcpy(numbers, &mine, sizeof mine);
  std::copy_n(reinterpret_cast<const double*>(rank_ages_.data()), rank_ages_.size() * RunMessages::ages,
              numbers + RunMessages::times);
}

// Of the step, of this node where this rank is the one that reads its counters.
template <class Exec, class T>
double Trainer<Exec, T>::step_joules() {
  return runtime_.is_first_of_node() ? energy_.take_joules().value_or(std::nan("")) : 0;
}

template <class Exec, class T>
void Trainer<Exec, T>::take_rank_step(std::size_t rank, const double* numbers) {
  std::memcpy(static_cast<void*>(&rank_steps_[rank]), numbers, sizeof(RankStep));
  if (rank == 0) stage_ages_.assign(stage_ages_.size(), {});
  for (std::size_t stage = 0; stage < stage_ages_.size(); ++stage) {
    const double* const ages = numbers + RunMessages::times + stage * RunMessages::ages;
    stage_ages_[stage].add({ages[0], ages[1], ages[2]});
  }
}

// What an evaluation or a save synchronised counts to the update after it.
template <class Exec, class T>
void Trainer<Exec, T>::note_coherence(double* numbers) {
  const CoherenceCount count = executor_.take_coherence();
  const double mine[RunMessages::coherence] = {static_cast<double>(count.bytes.sent), count.drift};
  std::copy_n(mine, RunMessages::coherence, numbers);
}

template <class Exec, class T>
void Trainer<Exec, T>::take_coherence(const double* numbers, std::size_t stride) {
  replicas_.emplace();
  for (std::size_t rank = 0; rank < rank_steps_.size(); ++rank) {
    const double* const of_rank = numbers + rank * stride;
    replicas_->bytes += static_cast<std::uint64_t>(of_rank[0]);
    replicas_->drift = std::max(replicas_->drift, of_rank[1]);
  }
}

template <class Exec, class T>
void Trainer<Exec, T>::gather_coherence() {
  if (coherence_numbers_.empty()) return;
  double mine[RunMessages::coherence];
  note_coherence(mine);
  runtime_.world().all_gather(mine, sizeof mine, coherence_numbers_.data());
  take_coherence(coherence_numbers_.data(), RunMessages::coherence);
}

template <class Exec, class T>
void Trainer<Exec, T>::report(std::int64_t step, double norm) {
  const RankStep all = of_all_ranks(rank_steps_);
  const std::uint64_t tokens = tokens_ - static_cast<std::uint64_t>(step_ - step) *
                                             static_cast<std::uint64_t>(options_.train.global_batch) *
                                             static_cast<std::uint64_t>(options_.data.sequence_length);
  longest_step_ = std::max(longest_step_, all.seconds.back());
  StageNumbers stages{.ages = stage_ages_};
  if (asynchronous()) stages.staleness = executor_.delays().updates;
  if (asynchronous() && step % options_.metrics.every == 0) stages.drift = executor_.delays().drift;
  stages.replicas = replicas_;
  const std::int64_t tensors_every = options_.metrics.tensors_every;
  if (asynchronous() && tensors_every > 0 && step % tensors_every == 0) stages.cosine = executor_.delays().cosine;
  report_.step(step, tokens, loss_, norm, schedule_.factor(step) * options_.optimizer.lr, skipped_, all, stages);
}

template <class Exec, class T>
void Trainer<Exec, T>::write_loads() {
  if (!several() || updates_ == 0) return;
  const double mine = update_seconds_ / static_cast<double>(updates_);
  std::vector<double> seconds(static_cast<std::size_t>(runtime_.size()));
  runtime_.world().all_gather(&mine, sizeof mine, seconds.data());
  metrics_.loads(step_, seconds, executor_.rank_costs());
  update_seconds_ = 0;
  updates_ = 0;
}

template <class Exec, class T>
void Trainer<Exec, T>::note_refresh_failures() {
  std::int64_t failures = 0;
  for (std::size_t i = 0; i < executor_.stage_count(); ++i)
    failures += executor_.stage(i).optimizer().refresh_failures();
  if (failures == refresh_failures_) return;
  const std::string what = fmt::format("{} preconditioners keep their last valid result", failures - refresh_failures_);
  spdlog::warn("step {}: {}", step_ + 1, what);
  metrics_.event(step_ + 1, "refresh", what);
  refresh_failures_ = failures;
}

template <class Exec, class T>
void Trainer<Exec, T>::write_diagnostics() {
  std::vector<typename TensorDiagnostics<Exec, T>::Values> values;
  diagnostics_->after_update(exec_, values);
  const std::vector<OwnedTensor<Exec, T>> tensors = executor_.tensors();
  std::vector<Metrics::TensorLine> lines;
  for (std::size_t i = 0; i < values.size(); ++i)
    lines.push_back({tensors[i].spec.name, values[i].weight_rms, values[i].update_rms, values[i].spectral_norm});
  metrics_.tensors(step_, lines);
}

#define SESTINA_TRAINER(Exec, T) template class Trainer<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_TRAINER)

}  // namespace sestina
