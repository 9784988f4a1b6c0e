// The trainer's reports of its steps: the numbers that ranks send each other, loads, failures, diagnostics.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/train/rotation_lines.hpp"
#include "app/train/trainer.hpp"

namespace sestina {
namespace {

// Traces the ages of one stage's preconditioners (-1: of all stages) from now on.
void trace_ages(Trace* trace, int stage, const RefreshAges& ages) {
  if (trace == nullptr || ages.count == 0) return;
  trace->count("preconditioner age, oldest", stage, static_cast<double>(ages.max));
  trace->count("preconditioner age, mean", stage, static_cast<double>(ages.sum) / static_cast<double>(ages.count));
}

// Returns the lines that all ranks have, in the order of the plan.
std::vector<Metrics::TensorLine> gather_lines(Communicator& world, const Plan& plan,
                                              const std::vector<UpdateDiagnostics::Tensor>& mine) {
  nlohmann::json told = nlohmann::json::array();  // bits of the numbers, which need not be finite
  for (const UpdateDiagnostics::Tensor& tensor : mine)
    told.push_back({tensor.name, std::bit_cast<std::uint64_t>(tensor.weight_rms),
                    std::bit_cast<std::uint64_t>(tensor.update_rms),
                    std::bit_cast<std::uint64_t>(tensor.spectral_norm)});
  std::map<std::string, Metrics::TensorLine> lines;
  const auto number = [](const nlohmann::json& bits) { return std::bit_cast<double>(bits.get<std::uint64_t>()); };
  for (const std::string& text : world.all_gather(told.dump()))
    for (const nlohmann::json& line : nlohmann::json::parse(text)) {
      const auto name = line[0].get<std::string>();
      lines[name] = {name, number(line[1]), number(line[2]), number(line[3])};
    }
  std::vector<Metrics::TensorLine> all;
  for (const StagePlan& stage : plan.stages)
    for (const TensorSpec& spec : stage.specs)
      if (const auto line = lines.find(spec.name); line != lines.end()) all.push_back(line->second);
  return all;
}

double worst_defect(const std::vector<Metrics::RotationLine>& lines) {
  double worst = 0;
  for (const Metrics::RotationLine& line : lines) worst = larger_or_nan(worst, line.defect);
  return worst;
}

}  // namespace

void Trainer::fill_report(RankReport& mine) {
  if (told_.votes) mine.votes = votes();
  clock_.end(Phase::optimizer);
  RefreshSeconds refreshes;
  RefreshAges ages;
  RefreshDrift drift;
  for (std::size_t i = 0; i < executor_.stage_count(); ++i) {
    OptimizerControl& optimizer = executor_.run(i).optimizer_control();
    const RefreshSeconds spent = optimizer.take_refresh_seconds();
    refreshes.waits += spent.waits;
    refreshes.copies += spent.copies;
    refreshes.workers += spent.workers;
    drift.add(optimizer.take_refresh_drift());
    const RefreshAges of_stage = optimizer.refresh_ages();
    ages.add(of_stage);
    mine.scores.add({executor_.run(i).largest_score()});
    const LargestLoad load = executor_.run(i).largest_load();
    mine.loads.add({load.over_mean, static_cast<double>(load.layer)});
    if (mine.ages.empty()) continue;
    const int stage = executor_.stage_number(i);
    mine.ages[static_cast<std::size_t>(stage)] = {static_cast<double>(of_stage.max), static_cast<double>(of_stage.sum),
                                                  static_cast<double>(of_stage.count)};
    trace_ages(trace_.get(), stage, of_stage);
  }
  if (mine.ages.empty()) trace_ages(trace_.get(), -1, ages);
  if (trace_.get() != nullptr && options_.optimizer.matrix && options_.optimizer.matrix->refresh_drift > 0)
    trace_.get()->count("refreshed sides", -1, static_cast<double>(drift.sides));
  trace_.take_jobs();
  const auto seconds = executor_.take_seconds();
  clock_.move(Phase::optimizer, Phase::refresh, refreshes.waits);
  clock_.move_waits(seconds.gather, seconds.reduce, seconds.homes, seconds.update);
  update_seconds_ += clock_[Phase::optimizer] + clock_[Phase::refresh];
  ++updates_;
  mine.step = {clock_.seconds(),
               static_cast<double>(peak_memory_bytes()),
               static_cast<double>(ages.max),
               static_cast<double>(ages.sum),
               static_cast<double>(ages.count),
               0,
               refreshes.copies,
               refreshes.workers,
               static_cast<double>(drift.sides),
               drift.largest};
  fill_energy(mine.step);
  if (told_.tiers) mine.tiers = take_traffic();
  if (!told_.replicas) return;
  const CoherenceCount count = executor_.take_coherence();  // includes synchronisations for evaluations and saves
  mine.replicas = {static_cast<double>(count.bytes.sent), count.blocks > 0 ? count.drift : -1};
}

// Returns what has moved between memory and the tier since the last call, also for saves and loads.
TierReport Trainer::take_traffic() {
  if (!tier_) return {};
  const Pager::Counts before = std::exchange(moved_, trace_.take_blocks(*tier_, step_ + 1));
  const auto since = [](std::uint64_t now, std::uint64_t then) { return static_cast<double>(now - then); };
  return {since(moved_.bytes_read, before.bytes_read), since(moved_.bytes_written, before.bytes_written),
          since(moved_.misses, before.misses), moved_.waited - before.waited};
}

// Adds the joules of this node in the step, where this rank is the one that reads its counters, and the work of this
// rank's processors.
void Trainer::fill_energy(RankStep& step) {
  const Joules joules = runtime_.is_first_of_node() ? energy_.take() : Joules{0, 0, 0, 0};
  const auto number = [](const std::optional<double>& value) { return value.value_or(std::nan("")); };
  step.energy = number(joules.all);
  step.package = number(joules.package);
  step.memory = number(joules.memory);
  step.device = number(joules.device);
  step.processor = processor_seconds() - processor_seconds_;
}

void Trainer::report(const FinishedStep& step) {
  const RankReport& all = step.report;
  const std::uint64_t tokens = tokens_ + static_cast<std::uint64_t>(step.update - step_) *
                                             static_cast<std::uint64_t>(options_.train.global_batch) *
                                             static_cast<std::uint64_t>(options_.data.sequence_length);
  longest_step_ = std::max(longest_step_, all.step.seconds.back());
  const auto due = [&step](std::int64_t every) { return every > 0 && step.update % every == 0; };
  StageNumbers stages{.staleness = step.delays.updates, .ages = all.ages};
  if (due(options_.metrics.every)) stages.drift = step.delays.drift;
  if (due(options_.metrics.tensors_every)) stages.cosine = step.delays.cosine;
  if (told_.replicas)
    stages.replicas = ReplicaNumbers{static_cast<std::uint64_t>(all.replicas.bytes), all.replicas.drift};
  if (told_.tiers)
    stages.tiers = TierNumbers{static_cast<std::uint64_t>(all.tiers.bytes_read),
                               static_cast<std::uint64_t>(all.tiers.bytes_written),
                               static_cast<std::uint64_t>(all.tiers.waits), all.tiers.wait_s};
  if (told_.loads) stages.load = all.loads.largest();
  report_.step(step.update, tokens, loss_, step.sums.norm, schedule_.factor(step.update) * options_.optimizer.lr,
               skipped_, all.step, stages);
  pace_.add(step.seconds);
  if (due(options_.metrics.every)) tell_slow_rank(step.update);
}

// A rank that stays slow is told once.
void Trainer::tell_slow_rank(std::int64_t step) {
  const std::optional<SlowRank> slow = pace_.take();
  if (slow && slow->rank != slow_rank_) tell("slow_rank", to_text(*slow), step);
  slow_rank_ = slow ? slow->rank : -1;
}

void Trainer::write_loads() {
  if (!several() || updates_ == 0) return;
  const double mine = update_seconds_ / static_cast<double>(updates_);
  std::vector<double> seconds(static_cast<std::size_t>(runtime_.size()));
  runtime_.world().all_gather(&mine, sizeof mine, seconds.data());
  metrics_.loads(step_, seconds, executor_.rank_costs());
  update_seconds_ = 0;
  updates_ = 0;
}

void Trainer::note_refresh_failures() {
  std::int64_t failures = 0;
  for (PipelineStage* stage : executor_.runs()) failures += stage->optimizer_control().refresh_failures();
  if (failures == refresh_failures_) return;
  const std::string what = fmt::format("{} preconditioners keep their last valid result", failures - refresh_failures_);
  spdlog::warn("step {}: {}", step_ + 1, what);
  metrics_.event(step_ + 1, "refresh", what);
  refresh_failures_ = failures;
}

void Trainer::prove_updates(bool due) {
  const RankRecords records = gather_records(runtime_.world(), executor_.runs());
  proved_ = proved_ || proof_.require_asked(records);
  if (due) metrics_.updates(step_, proof_.lines(records));
}

// A rotation that is above its bound is told once, until all of them are below it again.
void Trainer::write_rotations() {
  const RotationLines all = gather_rotations(runtime_.world(), executor_.runs(), executor_.plan());
  metrics_.rotations(step_, all.lines);
  const double bound = options_.metrics.rotation_bound;
  const bool far = bound > 0 && !(all.largest_q <= bound);
  if (far && !turned_far_)
    tell("rotations",
         fmt::format("{} is turned by ||Q|| = {:.3g}, above metrics.rotation_bound = {}: its rotations are {:.2g} from "
                     "orthogonal at most; merge more often (model.linear.merge_every) or learn more slowly",
                     all.furthest, all.largest_q, bound, worst_defect(all.lines)),
         step_);
  turned_far_ = far;
}

void Trainer::note_early_merges() {
  for (const EarlyMerge& merge : gather_early_merges(runtime_.world(), executor_.runs())) {
    const std::string what =
        fmt::format("{} is turned by ||Q|| = {:.3g}, above model.linear.merge_bound = {}: layer {} is merged early",
                    merge.weight, merge.largest_q, options_.model.linear.merge_bound, merge.layer);
    if (runtime_.is_first()) spdlog::info("step {}: {}", step_, what);
    metrics_.event(step_, "merge", what);
  }
}

void Trainer::write_diagnostics() {
  metrics_.tensors(step_ + 1, gather_lines(runtime_.world(), executor_.plan(), diagnostics_->after_update()));
}

}  // namespace sestina
