#include "parallel/step/step_exchange.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/error.hpp"

namespace sestina {

LaggedGather::LaggedGather(Communicator& ranks, std::size_t numbers, int lag) : numbers_(numbers) {
  const auto places = static_cast<std::size_t>(lag) + 1, size = static_cast<std::size_t>(ranks.size());
  mine_.resize(places * numbers);
  all_.resize(places * size * numbers);
  for (std::size_t i = 0; i < places; ++i)
    gathers_.push_back(ranks.make_all_gather("numbers of a step", &mine_[i * numbers], numbers * sizeof(double),
                                             &all_[i * size * numbers]));
}

LaggedGather::~LaggedGather() {
  const auto arrived = [this](std::int64_t step) {
    try {
      return gathers_[place(step)]->test();
    } catch (const Error&) {
      return false;
    }
  };
  while (oldest_ < next_ && arrived(oldest_)) ++oldest_;
  if (oldest_ == next_) return;
  new std::vector<double>(std::move(mine_));  // never freed: numbers may still arrive there
  new std::vector<double>(std::move(all_));
}

const double* LaggedGather::push() {
  gathers_[place(next_)]->start();
  ++next_;
  return next_ - oldest_ < static_cast<std::int64_t>(gathers_.size()) ? nullptr : pop();
}

const double* LaggedGather::peek() {
  if (oldest_ == next_) return nullptr;
  const std::size_t at = place(oldest_);
  gathers_[at]->finish();
  return &all_[at * (all_.size() / gathers_.size())];
}

const double* LaggedGather::pop() {
  const double* numbers = peek();
  if (numbers) ++oldest_;
  return numbers;
}

StepExchange::StepExchange(Communicator& world, const Plan& plan)
    : world_(world),
      plan_(plan),
      lag_(plan.input.parallel.is_async() ? plan.input.parallel.delay_scale * (plan.pp - 1) + 1 : 0),
      mine_(plan.pp),
      of_rank_(plan.pp),
      norms_(at(lag_)) {
  const std::vector<double> late(lag_ > 0 ? at(plan.pp) : 0);
  steps_.resize(
      at(std::max(lag_, 1)),
      {.report = mine_, .delays = {late, late, late}, .seconds = std::vector<PhaseSeconds>(at(world.size()))});
}

std::span<const FinishedStep> StepExchange::tell(ReportParts told, std::int64_t update, const StepSums& sums) {
  FinishedStep& step = steps_.front();
  if (lag_ == 0) {
    step.update = update;
    step.sums = sums;
    step.report.clear();
    gather({.times = told.times, .scores = told.scores, .tiers = told.tiers, .loads = told.loads}, step);
    gather({.replicas = told.replicas}, step);  // a message of its own
    return {&step, 1};
  }
  told_ = told;
  told_.sums = true;
  if (!lagged_) lagged_ = std::make_unique<LaggedGather>(world_, count_numbers(mine_, told_), lag_);
  write_numbers(mine_, told_, lagged_->mine());
  const double* all = lagged_->push();
  if (all) finish_step(all, step);
  return {&step, all ? 1u : 0u};
}

std::span<const FinishedStep> StepExchange::finish() {
  std::size_t count = 0;
  while (const double* all = lagged_ ? lagged_->pop() : nullptr) finish_step(all, steps_[count++]);
  return {steps_.data(), count};
}

void StepExchange::gather(const ReportParts& parts, FinishedStep& step) {
  const std::size_t ranks = at(world_.size()), count = count_numbers(mine_, parts);
  if (count == 0) return;
  numbers_.resize(std::max(numbers_.size(), (ranks + 1) * count));
  double* const mine = numbers_.data() + ranks * count;
  write_numbers(mine_, parts, mine);
  world_.all_gather(mine, count * sizeof(double), numbers_.data());
  add_reports(parts, numbers_.data(), step);
}

void StepExchange::add_reports(const ReportParts& parts, const double* numbers, FinishedStep& step) {
  of_rank_.clear();
  const std::size_t count = count_numbers(of_rank_, parts);
  for (int rank = 0; rank < world_.size(); ++rank, numbers += count) {
    read_numbers(of_rank_, parts, numbers);
    step.report.add(of_rank_);
    if (parts.times) step.seconds[at(rank)] = of_rank_.step.seconds;
    if (parts.sums) add_updates(rank, step);
  }
}

// Adds the updates of of_rank_. The first rank of each stage speaks for it; its tensor-parallel ranks have a part of
// its weights each, and those with which it holds all experts have theirs.
void StepExchange::add_updates(int rank, FinishedStep& step) const {
  for (int stage = 0; stage < plan_.pp; ++stage) {
    const int in_group = rank - plan_.pipe.rank_of(stage) * plan_.dp * plan_.tp;
    StageUpdate& all = step.report.stages[at(stage)];
    const StageUpdate& part = of_rank_.stages[at(stage)];
    if (in_group == 0) {
      all = part;
      if (stage + 1 == plan_.pp) step.sums.loss = of_rank_.sums.loss;
    } else if (0 < in_group && in_group < plan_.tp * plan_.input.parallel.ep) {
      all.moved += part.moved;
      all.weight += part.weight;
    }
  }
  if (of_rank_.sums.overflows != 0) step.sums.weights_finite = false;
}

// Norms are summed stage by stage, so that no layout changes a bit.
void StepExchange::finish_step(const double* numbers, FinishedStep& step) {
  step.report.clear();
  step.sums = {};
  add_reports(told_, numbers, step);
  double squares = 0;
  for (std::size_t stage = 0; stage < step.report.stages.size(); ++stage) {
    const StageUpdate& update = step.report.stages[stage];
    squares += update.squares;
    step.delays.updates[stage] = update.delay;
    step.delays.cosine[stage] = update.cosine;
    step.delays.drift[stage] = update.moved == 0 ? 0 : std::sqrt(update.moved / update.weight);
  }
  step.sums.norm = norm_of(finished_) = std::sqrt(squares);
  step.update = ++finished_;
}

double StepExchange::norm_in(const double* numbers) {
  double squares = 0;
  for (int stage = 0; stage < plan_.pp; ++stage) {
    const std::size_t rank = at(plan_.pipe.rank_of(stage) * plan_.dp * plan_.tp);
    read_numbers(of_rank_, told_, numbers + rank * count_numbers(of_rank_, told_));
    squares += of_rank_.stages[at(stage)].squares;
  }
  return std::sqrt(squares);
}

std::optional<double> StepExchange::norm_before(std::int64_t minibatch) {
  const std::int64_t then = minibatch - lag_;
  if (then < norms_from_) return std::nullopt;
  if (then < finished_) return norm_of(then);
  const double* all = lagged_->peek();
  SESTINA_REQUIRE(all && then == finished_, "the norm of minibatch {} at minibatch {}", then, minibatch);
  return norm_in(all);
}

void StepExchange::start_at(std::int64_t updates, const std::vector<double>& norms) {
  finished_ = updates;
  norms_from_ = updates - static_cast<std::int64_t>(norms.size());
  for (std::size_t i = 0; i < norms.size(); ++i) norm_of(norms_from_ + static_cast<std::int64_t>(i)) = norms[i];
}

std::vector<double> StepExchange::norms() const {
  std::vector<double> last;
  for (std::int64_t i = std::max(norms_from_, finished_ - lag_); i < finished_; ++i)
    last.push_back(norms_[static_cast<std::size_t>(i % lag_)]);
  return last;
}

}  // namespace sestina
