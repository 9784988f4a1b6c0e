#include "parallel/step/executor.hpp"

#include <cmath>
#include <limits>
#include <numeric>

#include "core/memory/pager.hpp"
#include "core/optimizer/gradient_norm.hpp"

namespace sestina {
namespace {

// Returns the sum of the squares of what elementwise rules update.
double rest_of(const StagePlan& plan, std::span<const double> squares) {
  double rest = 0;
  for (std::size_t i = 0; i < plan.specs.size(); ++i)
    if (!plan.is_matrix(static_cast<int>(i))) rest += squares[i];
  return rest;
}

}  // namespace

Passes Executor::backward(std::int64_t t, double factor, Batches& batches, const std::function<bool()>& interrupted) {
  t_ = t;
  factor_ = factor;
  exchange_.mine().clear();
  std::fill(whole_.begin(), whole_.end(), 0.0);
  for (auto& run : runs_) run->look_ahead(t, factor);
  if (updates_in_passes_) run_ahead(batches);
  expect_messages();
  compute_fresh();
  if (!run_actions(batches, interrupted) || (overlaps_ && interrupted && interrupted())) {
    withdraw();
    return {.dropped = true};
  }
  first_micro_ += pipe_.micros;
  clock_.end(Phase::forward_backward);
  if (overlaps_) update_matrices();
  if (!updates_in_passes_)
    for (auto& run : runs_) sum_stage(*run);
  complete_sums();
  // Such a step may end the run: no weights are on their way then.
  const bool fine = std::isfinite(sums_.norm) && std::isfinite(sums_.loss) && sums_.weights_finite;
  if (overlaps_ && !fine) finish_gather();
  if (updates_in_passes_) return {};
  return {.sums = sums_};
}

// Called before the passes of an update: computes fresh gradients where the update is one that is sampled.
void Executor::compute_fresh() {
  compares_ = fresh_ && t_ % plan_.input.tensors_every == 0;
  std::fill(cosines_.begin(), cosines_.end(), std::numeric_limits<double>::quiet_NaN());
  if (compares_) fresh_->compute(first_micro_, pipe_.micros, scale_);
}

// Runs the forward passes that an asynchronous pipeline has ahead when it starts, or starts again after a drain. Passes
// that a checkpoint brought back lack only their tokens.
void Executor::run_ahead(Batches& batches) {
  const StagePlace& place = runs_.front()->place();
  const std::int64_t minibatch = first_micro_ / pipe_.micros;
  const bool drained = place.drains_before(minibatch);
  if (restored_ && !drained)
    for (int micro = 0; micro < schedule_.ahead[at(place.number)]; ++micro) load(place, first_micro_ + micro, batches);
  restored_ = false;
  if (started_ && !drained) return;
  started_ = true;
  auto receives = receives_ahead_.begin();
  for (const Action& action : ahead_) {
    if (pipe_.rank_of(action.stage) != groups_.pipeline->rank()) continue;
    start_receives(*receives++);
    forward(action, batches);
  }
  start_receives(*receives);
}

void Executor::start_receives(const std::vector<PipelineReceive>& receives) {
  for (const PipelineReceive& receive : receives) {
    PipelineStage& run = run_of(receive.stage);
    const std::int64_t micro = first_micro_ + receive.micro;
    if (is_in_segment(run.place(), micro)) run.start_receive(receive.what, micro);
  }
}

// Tells the stages what the actions of this update will receive.
void Executor::expect_messages() {
  for (auto& run : runs_) {
    const StagePlace& place = run->place();
    const std::int64_t begin = first_micro_ + place.ahead;
    std::int64_t end = begin;
    while (end < begin + pipe_.micros && is_in_segment(place, end)) ++end;
    run->expect_messages(first_micro_, begin, end);
  }
}

bool Executor::run_actions(Batches& batches, const std::function<bool()>& interrupted) {
  int passes = 0;
  auto receives = receives_.begin();
  for (const Action& action : schedule_.ranks[at(groups_.pipeline->rank())]) {
    start_receives(*receives++);
    PipelineStage& run = run_of(action.stage);
    const std::int64_t micro = first_micro_ + action.micro;
    switch (action.kind) {
      case ActionKind::forward:
        forward(action, batches);
        break;
      case ActionKind::backward:
      case ActionKind::backward_input:
        if (pager_) pager_->expect_turns();
        run.backward(micro, scale_);
        if (pipe_.stages == 1 && !overlaps_ && ++passes < pipe_.micros && interrupted && interrupted()) return false;
        break;
      case ActionKind::backward_weight:
        run.backward_weight(micro);
        break;
      case ActionKind::update:
        clock_.end(Phase::forward_backward);
        sum_stage(run);
        update_stage(run);
        clock_.end(Phase::optimizer);
        break;
    }
  }
  start_receives(*receives);
  return true;
}

// Forwards stop where the pipeline drains.
bool Executor::is_in_segment(const StagePlace& place, std::int64_t micro) const {
  return place.segment(micro / pipe_.micros) == place.segment(first_micro_ / pipe_.micros);
}

// The first stage of a rank brings in the tokens for all of them.
bool Executor::load(const StagePlace& place, std::int64_t micro, Batches& batches) {
  if (!is_in_segment(place, micro)) return false;
  if (place.number != runs_.front()->place().number) return true;
  const TraceSpan span(trace_, "data");
  clock_.end(Phase::forward_backward);
  const BatchView batch = batches.next();
  clock_.end(Phase::data);
  runs_.front()->load(micro, batch);
  return true;
}

void Executor::forward(const Action& action, Batches& batches) {
  PipelineStage& run = run_of(action.stage);
  const std::int64_t micro = first_micro_ + action.micro;
  if (load(run.place(), micro, batches)) run.forward(micro);
}

// Waits of a lone rank are those for its passes.
void Executor::update_matrices() {
  const double clip = clip_norm_at(plan_.input.model.linear, plan_.input.train.clip_norm, t_);
  double seconds = 0;
  for (auto& run : runs_) seconds += run->update_matrices(t_, factor_, clip);
  const Phase waited = plan_.input.parallel.dp * plan_.pipe.ranks > 1 ? Phase::reduce : Phase::forward_backward;
  clock_.end(waited);
  clock_.move(waited, Phase::optimizer, seconds);
}

void Executor::sum_stage(PipelineStage& run) {
  const std::size_t first = first_tensor_[at(run.place().number)], flag = first_tensor_.back();
  run.finish_gradients();
  if (compares_)
    cosines_[run_of_stage_[at(run.place().number)]] = fresh_->cosine(run_of_stage_[at(run.place().number)]);
  const std::span<const double> squares = run.sum(losses_);
  std::copy(squares.begin(), squares.end() - 1, whole_.begin() + static_cast<std::ptrdiff_t>(first));
  whole_[flag] += squares.back();
  if (run.place().number + 1 == plan_.pp)
    std::copy(losses_.begin(), losses_.end(), whole_.begin() + static_cast<std::ptrdiff_t>(flag + 1));
}

// Every place is filled by one stage, so the sums over the pipeline are exact. Asynchronous stages wait for no other
// stage.
void Executor::complete_sums() {
  if (plan_.pipe.ranks > 1 && !updates_in_passes_)
    groups_.pipeline->all_reduce(whole_.data(), whole_.size(), Reduction::sum);
  const auto flag = whole_.begin() + static_cast<std::ptrdiff_t>(first_tensor_.back());
  sums_.norm = std::sqrt(std::accumulate(whole_.begin(), flag, 0.0));
  sums_.weights_finite = *flag == 0;
  sums_.loss = std::accumulate(flag + 1, whole_.end(), 0.0);
}

std::string Executor::nonfinite_gradient() const {
  std::string last;
  for (std::size_t stage = 0; stage < plan_.stages.size(); ++stage)
    for (std::size_t i = 0; i < plan_.stages[stage].specs.size(); ++i)
      if (!std::isfinite(whole_[first_tensor_[stage] + i])) last = plan_.stages[stage].specs[i].name;
  return last;
}

double Executor::norm_of(const PipelineStage& run) const {
  const auto place = [&](int stage) { return whole_.begin() + static_cast<std::ptrdiff_t>(first_tensor_[at(stage)]); };
  return std::sqrt(std::accumulate(place(run.place().number), place(run.place().number + 1), 0.0));
}

double Executor::norm_of(const PipelineStage& run, bool projections) const {
  const std::vector<TensorSpec>& specs = run.plan().specs;
  const std::size_t first = first_tensor_[at(run.place().number)];
  double squares = 0;
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (specs[i].is_projection() == projections) squares += whole_[first + i];
  return std::sqrt(squares);
}

ClipScales Executor::clip_scales(const PipelineStage& run, double clip, std::optional<double> lagged) {
  using Scope = ParallelOptions::ClipScope;
  const Scope scope = plan_.input.parallel.clip_scope;
  const std::vector<TensorSpec>& specs = run.plan().specs;
  if (scope == Scope::group) {
    const double projections = clip_scale(norm_of(run, true), clip), rest = clip_scale(norm_of(run, false), clip);
    if (projections == rest) return {rest};
    for (std::size_t i = 0; i < specs.size(); ++i) clips_[i] = specs[i].is_projection() ? projections : rest;
    return {rest, std::span(clips_).first(specs.size())};
  }
  if (scope == Scope::matrix) {
    const std::span<double> scales = std::span(clips_).first(specs.size());
    const auto squares = [&](int stage) { return std::span<const double>(whole_).subspan(first_tensor_[at(stage)]); };
    const int mine = run.place().number;
    double rest = 0;  // where no stage waits for others, that of its own
    for (int stage = 0; stage < plan_.pp; ++stage)
      if (stage == mine || !updates_in_passes_) rest += rest_of(plan_.stages[at(stage)], squares(stage));
    const double of_rest = clip_scale(std::sqrt(rest), clip);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const double of_matrix = overlaps_ ? 1 : clip_scale(std::sqrt(squares(mine)[i]), clip);  // 1: it is updated
      scales[i] = run.plan().is_matrix(static_cast<int>(i)) ? of_matrix : of_rest;
    }
    const bool clips = std::any_of(scales.begin(), scales.end(), [](double scale) { return scale != 1; });
    return {1, clips ? scales : std::span<double>()};
  }
  return {clip_scale(scope == Scope::global ? sums_.norm : lagged.value_or(norm_of(run)), clip)};
}

void Executor::update() {
  const double clip = clip_norm_at(plan_.input.model.linear, plan_.input.train.clip_norm, t_);
  for (auto& run : runs_) run->update(t_, factor_, clip_scales(*run, clip, std::nullopt));
}

void Executor::withdraw() {
  for (auto& run : runs_) run->look_back();
}

// Updates a stage by itself without asking other ranks. A gradient that is not finite changes only the count of
// versions.
void Executor::update_stage(PipelineStage& run) {
  const bool lags = plan_.input.parallel.clip_scope == ParallelOptions::ClipScope::global_lagged;
  const std::optional<double> lagged = lags ? exchange_.norm_before(t_ - 1) : std::nullopt;
  if (!std::isfinite(norm_of(run)) || !std::isfinite(lagged.value_or(0))) return run.withhold();
  const double clip = clip_norm_at(plan_.input.model.linear, plan_.input.train.clip_norm, t_);
  run.update(t_, factor_, clip_scales(run, clip, lagged));
}

std::span<const FinishedStep> Executor::exchange(ReportParts told) {
  RankReport& mine = exchange_.mine();
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const StageDelay& delay = runs_[i]->delay();
    mine.stages[at(stage_number(i))] = {std::pow(stage_norm(i), 2), delay.updates, delay.moved, delay.weight,
                                        cosines_[i]};
  }
  mine.sums = {sums_.loss, sums_.weights_finite ? 0.0 : 1.0};
  return exchange_.tell(told, t_, sums_);
}

std::span<const FinishedStep> Executor::finish_steps() {
  for (auto& run : runs_) run->complete();
  return exchange_.finish();
}

void Executor::finish_gather() {
  for (auto& run : runs_) run->finish_gather();
}

void Executor::synchronise() {
  for (auto& run : runs_) run->synchronise();
}

CoherenceCount Executor::take_coherence() {
  CoherenceCount all;
  for (auto& run : runs_) all.add(run->take_coherence());
  return all;
}

StageSeconds Executor::take_seconds() {
  StageSeconds all;
  for (auto& run : runs_) {
    const StageSeconds one = run->take_seconds();
    all.gather += one.gather;
    all.reduce += one.reduce;
    all.homes += one.homes;
    all.update += one.update;
  }
  return all;
}

std::vector<std::int64_t> Executor::rank_costs() const {
  const int in_stage = plan_.dp * plan_.tp;
  std::vector<std::int64_t> costs(at(in_stage * plan_.pipe.ranks), 0);
  for (int stage = 0; stage < pipe_.stages; ++stage)
    for (int rank = 0; rank < in_stage; ++rank)
      costs[at(pipe_.rank_of(stage) * in_stage + rank)] += plan_.stages[at(stage)].rank_cost[at(rank)];
  return costs;
}

StageExchangeCount Executor::exchanges_per_step() const {
  StageExchangeCount all;
  for (const auto& run : runs_) {
    const StageExchangeCount one = run->exchange_count();
    all.gradients += one.gradients;
    all.weights += one.weights;
    all.homes += one.homes;
    all.sums += one.sums;
  }
  return all;
}

}  // namespace sestina
