// What the ranks tell each other of every step: at once, or in an asynchronous pipeline to be read a fixed number of
// updates later.
#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/step/executor.hpp"

namespace sestina {

template <class Exec, class T>
int Executor<Exec, T>::lag() const {
  return updates_in_passes_ ? plan_.input.parallel.delay_scale * (pipe_.stages - 1) + 1 : 0;
}

template <class Exec, class T>
std::span<const FinishedStep> Executor<Exec, T>::exchange(ReportParts told) {
  if (!updates_in_passes_) {
    gather_report(told, steps_.front());
    return {steps_.data(), 1};
  }
  send_report(told);
  const double* all = reports_->push();
  if (all) finish_step(all, steps_.front());
  return {steps_.data(), all ? 1u : 0u};
}

template <class Exec, class T>
std::span<const FinishedStep> Executor<Exec, T>::finish_steps() {
  for (auto& run : runs_) run->exchanges().complete();
  std::size_t count = 0;
  while (const double* all = reports_ ? reports_->pop() : nullptr) finish_step(all, steps_[count++]);
  return {steps_.data(), count};
}

// Where replicas drift, what they say of it follows in a message of its own.
template <class Exec, class T>
void Executor<Exec, T>::gather_report(const ReportParts& told, FinishedStep& step) {
  step.update = t_;
  step.sums = sums_;
  step.report.clear();
  const std::size_t ranks = at(world_.size());
  for (const ReportParts& parts : {ReportParts{.times = told.times}, ReportParts{.replicas = told.replicas}}) {
    const std::size_t count = count_numbers(mine_, parts);
    if (count == 0) continue;
    numbers_.resize(std::max(numbers_.size(), (ranks + 1) * count));
    double* const mine = numbers_.data() + ranks * count;
    write_numbers(mine_, parts, mine);
    world_.all_gather(mine, count * sizeof(double), numbers_.data());
    of_rank_.clear();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      read_numbers(of_rank_, parts, numbers_.data() + rank * count);
      step.report.add(of_rank_);
    }
  }
}

template <class Exec, class T>
void Executor<Exec, T>::send_report(ReportParts told) {
  told.sums = true;
  if (!reports_) reports_ = std::make_unique<LaggedGather>(world_, count_numbers(mine_, told), lag());
  told_ = told;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const StageDelay& delay = runs_[i]->delay();
    mine_.stages[at(stage_number(i))] = {std::pow(stage_norm(i), 2), delay.updates, delay.drift.moved,
                                         delay.drift.weight, cosines_[i]};
  }
  mine_.sums = {sums_.loss, sums_.weights_finite ? 0.0 : 1.0};
  write_numbers(mine_, told_, reports_->mine());
}

// Before the passes of an update, where it is one that is sampled.
template <class Exec, class T>
void Executor<Exec, T>::compute_fresh() {
  compares_ = fresh_ && t_ % plan_.input.tensors_every == 0;
  std::fill(cosines_.begin(), cosines_.end(), std::numeric_limits<double>::quiet_NaN());
  if (compares_) fresh_->compute(*tokens_, first_micro_, pipe_.micros, scale_);
}

// Of of_rank_. The first rank of each stage speaks for it; its tensor-parallel ranks have a part of its weights each.
template <class Exec, class T>
void Executor<Exec, T>::add_updates(int rank, FinishedStep& step) {
  for (int stage = 0; stage < pipe_.stages; ++stage) {
    const int in_group = rank - pipe_.rank_of(stage) * plan_.dp * plan_.tp;
    StageUpdate& all = step.report.stages[at(stage)];
    const StageUpdate& part = of_rank_.stages[at(stage)];
    if (in_group == 0) {
      all = part;
      if (stage + 1 == pipe_.stages) step.sums.loss = of_rank_.sums.loss;
    } else if (0 < in_group && in_group < plan_.tp) {
      all.moved += part.moved;
      all.weight += part.weight;
    }
  }
  if (of_rank_.sums.overflows != 0) step.sums.weights_finite = false;
}

// Norms are summed stage by stage, so that no layout changes a bit.
template <class Exec, class T>
void Executor<Exec, T>::finish_step(const double* numbers, FinishedStep& step) {
  step.report.clear();
  step.sums = {};
  for (int rank = 0; rank < world_.size(); ++rank, numbers += count_numbers(of_rank_, told_)) {
    read_numbers(of_rank_, told_, numbers);
    step.report.add(of_rank_);
    add_updates(rank, step);
  }
  double squares = 0;
  for (std::size_t stage = 0; stage < step.report.stages.size(); ++stage) {
    const StageUpdate& update = step.report.stages[stage];
    squares += update.squares;
    step.delays.updates[stage] = update.delay;
    step.delays.cosine[stage] = update.cosine;
    step.delays.drift[stage] = update.moved == 0 ? 0 : std::sqrt(update.moved / update.weight);
  }
  step.sums.norm = std::sqrt(squares);
  norms_[static_cast<std::size_t>(finished_ % lag())] = step.sums.norm;
  step.update = ++finished_;
}

template <class Exec, class T>
double Executor<Exec, T>::norm_in(const double* numbers) {
  double squares = 0;
  for (int stage = 0; stage < pipe_.stages; ++stage) {
    const std::size_t rank = at(pipe_.rank_of(stage) * plan_.dp * plan_.tp);
    read_numbers(of_rank_, told_, numbers + rank * count_numbers(of_rank_, told_));
    squares += of_rank_.stages[at(stage)].squares;
  }
  return std::sqrt(squares);
}

// Of the minibatch lag() before this one: every rank has sent its part before it began this one's last forward pass.
// None at the beginning of a run.
template <class Exec, class T>
std::optional<double> Executor<Exec, T>::lagged_norm(std::int64_t minibatch) {
  const std::int64_t then = minibatch - lag();
  if (plan_.input.parallel.clip_scope != ParallelOptions::ClipScope::global_lagged || then < norms_from_)
    return std::nullopt;
  if (then < finished_) return norms_[static_cast<std::size_t>(then % lag())];
  const double* all = reports_->peek();
  SESTINA_REQUIRE(all && then == finished_, "the norm of minibatch {} at minibatch {}", then, minibatch);
  return norm_in(all);
}

#define SESTINA_EXECUTOR(Exec, T) template class Executor<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_EXECUTOR)

}  // namespace sestina
