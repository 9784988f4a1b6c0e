// What the ranks of an asynchronous pipeline tell each other of every step, and learn a fixed number of updates later.
#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/step/executor.hpp"

namespace sestina {

template <class Exec, class T>
int Executor<Exec, T>::lag() const {
  return plan_.input.parallel.delay_scale * (pipe_.stages - 1) + 1;
}

template <class Exec, class T>
void Executor<Exec, T>::note_step(StepDriver& driver) {
  if (!reports_) {
    told_ = driver.told();
    told_.sums = true;
    reports_ = std::make_unique<LaggedGather>(world_, count_numbers(mine_, told_), lag());
  }
  mine_.clear();
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const StageDelay& delay = runs_[i]->delay();
    mine_.stages[at(stage_number(i))] = {std::pow(stage_norm(i), 2), delay.updates, delay.drift.moved,
                                         delay.drift.weight, cosines_[i]};
  }
  mine_.sums = {sums_.loss, sums_.weights_finite ? 0.0 : 1.0};
  driver.tell(mine_);
  write_numbers(mine_, told_, reports_->mine());
  if (const double* all = reports_->push()) finish_step(all, driver);
}

// Before the passes of an update, where it is one that is sampled.
template <class Exec, class T>
void Executor<Exec, T>::compute_fresh(std::int64_t t) {
  compares_ = fresh_ && t % plan_.input.tensors_every == 0;
  std::fill(cosines_.begin(), cosines_.end(), std::numeric_limits<double>::quiet_NaN());
  if (compares_) fresh_->compute(*tokens_, first_micro_, pipe_.micros, scale_);
}

// Of of_rank_. The first rank of each stage speaks for it; its tensor-parallel ranks have a part of its weights each.
template <class Exec, class T>
void Executor<Exec, T>::add_updates(int rank, StepSums& sums) {
  for (int stage = 0; stage < pipe_.stages; ++stage) {
    const int in_group = rank - pipe_.rank_of(stage) * plan_.dp * plan_.tp;
    StageUpdate& all = all_.stages[at(stage)];
    const StageUpdate& part = of_rank_.stages[at(stage)];
    if (in_group == 0) {
      all = part;
      if (stage + 1 == pipe_.stages) sums.loss = of_rank_.sums.loss;
    } else if (0 < in_group && in_group < plan_.tp) {
      all.moved += part.moved;
      all.weight += part.weight;
    }
  }
  if (of_rank_.sums.overflows != 0) sums.weights_finite = false;
}

// Norms are summed stage by stage, so that no layout changes a bit.
template <class Exec, class T>
void Executor<Exec, T>::finish_step(const double* numbers, StepDriver& driver) {
  StepSums sums;
  all_.clear();
  for (int rank = 0; rank < world_.size(); ++rank, numbers += count_numbers(all_, told_)) {
    read_numbers(of_rank_, told_, numbers);
    all_.add(of_rank_);
    add_updates(rank, sums);
  }
  double squares = 0;
  for (std::size_t stage = 0; stage < all_.stages.size(); ++stage) {
    const StageUpdate& update = all_.stages[stage];
    squares += update.squares;
    delays_.updates[stage] = update.delay;
    delays_.cosine[stage] = update.cosine;
    delays_.drift[stage] = update.moved == 0 ? 0 : std::sqrt(update.moved / update.weight);
  }
  sums.norm = std::sqrt(squares);
  norms_[static_cast<std::size_t>(finished_ % lag())] = sums.norm;
  driver.step_finished(++finished_, sums, all_);
}

template <class Exec, class T>
void Executor<Exec, T>::finish_steps(StepDriver& driver) {
  for (auto& run : runs_) run->exchanges().complete();
  while (const double* all = reports_ ? reports_->pop() : nullptr) finish_step(all, driver);
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
