// What the ranks of an asynchronous pipeline tell each other of every step, and learn a fixed number of updates later.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "parallel/plan/plan_collectives.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {

template <class Exec, class T>
int Executor<Exec, T>::lag() const {
  return plan_.input.parallel.delay_scale * (pipe_.stages - 1) + 1;
}

// What the other ranks must know of a step: squares by stage, loss, the flag, and what the driver adds.
template <class Exec, class T>
void Executor<Exec, T>::note_step(StepDriver& driver) {
  const StepNumbers places{pipe_.stages};
  const std::size_t own = at(places.count());
  if (!notes_) notes_ = std::make_unique<LaggedGather>(world_, own + driver.note_count(), lag());
  double* mine = notes_->mine();
  std::fill_n(mine, own, 0.0);
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const int stage = runs_[i]->place().number;
    mine[places.squares(stage)] = std::pow(stage_norm(i), 2);
    const StageDelay& delay = runs_[i]->delay();
    const double numbers[] = {delay.updates, delay.drift.moved, delay.drift.weight, cosines_[i]};
    std::copy(std::begin(numbers), std::end(numbers), mine + places.delay(stage));
  }
  mine[places.loss()] = sums_.loss;
  mine[places.flag()] = sums_.weights_finite ? 0 : 1;
  driver.note(mine + own);
  if (const double* all = notes_->push()) finish_step(all, driver);
}

// One rank of each stage speaks for it; norms are summed stage by stage, so that no layout changes a bit.
template <class Exec, class T>
StepSums Executor<Exec, T>::sums_in(const double* all, std::size_t stride) const {
  const StepNumbers places{pipe_.stages};
  const auto of = [&](int stage) { return all + stride * at(pipe_.rank_of(stage) * plan_.dp * plan_.tp); };
  StepSums sums;
  for (int stage = 0; stage < pipe_.stages; ++stage) sums.norm += of(stage)[places.squares(stage)];
  sums.norm = std::sqrt(sums.norm);
  sums.loss = of(pipe_.stages - 1)[places.loss()];
  for (int rank = 0; rank < world_.size(); ++rank)
    if (all[stride * at(rank) + at(places.flag())] != 0) sums.weights_finite = false;
  return sums;
}

// Before the passes of an update, where it is one that is sampled.
template <class Exec, class T>
void Executor<Exec, T>::compute_fresh(std::int64_t t) {
  compares_ = fresh_ && t % plan_.input.tensors_every == 0;
  std::fill(cosines_.begin(), cosines_.end(), std::numeric_limits<double>::quiet_NaN());
  if (compares_) fresh_->compute(*tokens_, first_micro_, pipe_.micros, scale_);
}

// The tensor-parallel ranks of a stage have a part of its weights each.
template <class Exec, class T>
void Executor<Exec, T>::take_delays(const double* all, std::size_t stride) {
  const StepNumbers places{pipe_.stages};
  for (int stage = 0; stage < pipe_.stages; ++stage) {
    const double* first =
        all + stride * at(pipe_.rank_of(stage) * plan_.dp * plan_.tp) + at(places.delay(stage));  // of its first rank
    double moved = 0, weight = 0;
    for (int rank = 0; rank < plan_.tp; ++rank) {
      moved += first[stride * at(rank) + 1];
      weight += first[stride * at(rank) + 2];
    }
    delays_.updates[at(stage)] = first[0];
    delays_.cosine[at(stage)] = first[3];
    delays_.drift[at(stage)] = moved == 0 ? 0 : std::sqrt(moved / weight);
  }
}

template <class Exec, class T>
void Executor<Exec, T>::finish_step(const double* all, StepDriver& driver) {
  const std::size_t own = at(StepNumbers{pipe_.stages}.count()), stride = own + driver.note_count();
  const StepSums sums = sums_in(all, stride);
  norms_[static_cast<std::size_t>(finished_ % lag())] = sums.norm;
  take_delays(all, stride);
  driver.step_finished(++finished_, sums, all + own, stride);
}

template <class Exec, class T>
void Executor<Exec, T>::finish_steps(StepDriver& driver) {
  for (auto& run : runs_) run->exchanges().complete();
  while (const double* all = notes_ ? notes_->pop() : nullptr) finish_step(all, driver);
}

// Of the minibatch lag() before this one: every rank has sent its part before it began this one's last forward pass.
// None at the beginning of a run.
template <class Exec, class T>
std::optional<double> Executor<Exec, T>::lagged_norm(std::int64_t minibatch, StepDriver& driver) {
  const std::int64_t then = minibatch - lag();
  if (plan_.input.parallel.clip_scope != ParallelOptions::ClipScope::global_lagged || then < norms_from_)
    return std::nullopt;
  if (then < finished_) return norms_[static_cast<std::size_t>(then % lag())];
  const double* all = notes_->peek();
  SESTINA_REQUIRE(all && then == finished_, "the norm of minibatch {} at minibatch {}", then, minibatch);
  return sums_in(all, at(StepNumbers{pipe_.stages}.count()) + driver.note_count()).norm;
}

#define SESTINA_EXECUTOR(Exec, T) template class Executor<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_EXECUTOR)

}  // namespace sestina
