// What the trainer does about spikes (core/spike_bound.hpp). All ranks have the same values and decide the same. In a
// synchronous pipeline loss and norm are known before the update, which can be held back; the largest attention logit
// is known after it.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "app/train/trainer.hpp"

namespace sestina {
namespace {

constexpr double not_known = std::numeric_limits<double>::quiet_NaN();

}  // namespace

// All ranks know it: the first one says it.
void Trainer::tell(const char* event, const std::string& what, std::int64_t step) {
  if (!runtime_.is_first()) return;
  report_.clear_bar();
  spdlog::warn("{}: {}", event, what);
  metrics_.event(step, event, what);
}

void Trainer::note_spike(std::int64_t update, const Spike& spike, bool made) {
  const std::string what = fmt::format("{} {:.6g} in step {} is above {:.6g}, the bound of the last {} updates",
                                       spike.name, spike.value, update, spike.bound, options_.run.spike_window);
  tell("spike", what, made ? update : update - 1);
}

// Returns `updated` where the update is to be made.
StepOutcome Trainer::hold_spike(const StepSums& sums) {
  if (!spikes_ || !options_.run.holds_updates()) return StepOutcome::updated;
  const std::optional<Spike> spike = spikes_->find({loss_, sums.norm, not_known});
  if (!spike) return StepOutcome::updated;
  note_spike(step_ + 1, *spike, false);
  if (options_.run.on_spike == RunOptions::OnSpike::recompute) return compute_again(sums);
  return find_rollback(*spike) ? StepOutcome::goes_back : StepOutcome::updated;
}

// A processor or memory that erred for a moment does not err twice: the passes run again, and what they give now
// counts.
StepOutcome Trainer::compute_again(const StepSums& first) {
  const auto batch = static_cast<std::uint64_t>(options_.train.global_batch);
  const double loss = loss_;
  batches_.start_at(sample_ - batch);
  const Passes passes = run_passes_again();
  if ((several() || batches_.lost()) && stop_voted()) {
    sample_ -= batch;
    return StepOutcome::dropped;
  }
  loss_ = mean_loss(*passes.sums);
  const bool same = passes.sums->loss == first.loss && passes.sums->norm == first.norm;
  const std::string what =
      same ? fmt::format("step {} comes out the same when it is computed again: it is made", step_ + 1)
           : fmt::format(
                 "step {} comes out differently when it is computed again: loss {:.9g} and grad_norm {:.9g}, they "
                 "were {:.9g} and {:.9g}; it is made of the second ones",
                 step_ + 1, loss_, passes.sums->norm, loss, first.norm);
  tell("recompute", what, step_);
  return finite(step_ + 1, loss_, passes.sums->norm) ? StepOutcome::updated : StepOutcome::refused;
}

void Trainer::watch_finished(const FinishedStep& step) {
  if (!spikes_) return;
  const bool held = options_.run.holds_updates();  // then loss and norm were looked at before
  const double score = step.report.scores.largest;
  const std::optional<Spike> spike =
      spikes_->find({held ? not_known : loss_, held ? not_known : step.sums.norm, score});
  if (spike) note_spike(step.update, *spike, true);
  spikes_->add({loss_, step.sums.norm, score});
  if (spike && options_.run.on_spike == RunOptions::OnSpike::rollback) find_rollback(*spike);
}

// Returns the newest checkpoint that verifies among those that this run saved or was resumed from, "" without one.
std::string Trainer::newest_own_checkpoint() {
  for (const CheckpointInfo& info : list_checkpoints(setup_.run_dir)) {
    if (info.step > newest_step_ || !info.problem.empty()) continue;
    const std::string problem = verify_checkpoint(info.path, options_.checkpoint.verify_full);
    if (problem.empty()) return info.path;
    spdlog::warn("{} is passed over: {}", info.path, problem);
  }
  return "";
}

// The samples since the checkpoint, those of the update that is held back included, are left out.
bool Trainer::find_rollback(const Spike& spike) {
  wait_for_saves();
  drain_events();
  Rollback back;
  std::uint64_t facts[2] = {0, 0};                   // updates and next sample of the checkpoint
  runtime_.set_timeout(options_.run.start_timeout);  // a large checkpoint is verified by one rank
  runtime_.together([&] {
    if (!runtime_.is_first()) return;
    back.checkpoint = newest_own_checkpoint();
    if (back.checkpoint.empty()) return;
    if (several()) back.checkpoint = std::filesystem::absolute(back.checkpoint).string();
    const CheckpointReader reader(back.checkpoint, Verify::opened);
    facts[0] = static_cast<std::uint64_t>(reader.run().step);
    facts[1] = reader.run().sample;
  });
  runtime_.world().broadcast(back.checkpoint, 0);
  runtime_.world().broadcast(facts, sizeof facts, 0);
  runtime_.set_timeout(options_.run.abort_timeout);
  if (back.checkpoint.empty()) {
    if (runtime_.is_first()) spdlog::warn("no checkpoint to go back to yet: the run goes on");
    return false;
  }
  if (static_cast<int>(left_out_.size()) >= options_.run.max_rollbacks)
    fail_diverged(fmt::format("{} {:.6g} in step {} is a spike, after {} rollbacks (run.max_rollbacks)", spike.name,
                              spike.value, step_ + 1, left_out_.size()));
  back.step = static_cast<std::int64_t>(facts[0]);
  const std::uint64_t first = left_out_.empty() ? facts[1] : std::max(facts[1], left_out_.back().last + 1);
  back.left_out = left_out_;
  back.left_out.push_back({first, sample_ - 1});
  const std::string what =
      fmt::format("from step {} to step {}, samples {} to {} are left out ({} of at most {})", step_, back.step, first,
                  sample_ - 1, back.left_out.size(), options_.run.max_rollbacks);
  tell("rollback", what, step_);
  rollback_ = std::move(back);
  return true;
}

void Trainer::save_spikes(nlohmann::json& extra) const {
  if (spikes_)
    for (std::size_t i = 0; i < watched_names.size(); ++i)
      extra["spikes"][std::string(watched_names[i])] = spikes_->last(i);
  for (const SampleRange& range : left_out_) extra["left_out"].push_back({range.first, range.last});
}

void Trainer::load_spikes(const nlohmann::json& extra) {
  if (const auto found = extra.find("spikes"); spikes_ && found != extra.end())
    for (std::size_t i = 0; i < watched_names.size(); ++i)
      spikes_->restore(i, found->value(std::string(watched_names[i]), std::vector<double>()));
  if (setup_.rollback) {
    left_out_ = setup_.rollback->left_out;
    sample_ = left_out_.back().last + 1;
  } else if (const auto found = extra.find("left_out"); !setup_.fork && found != extra.end()) {
    for (const nlohmann::json& range : *found) left_out_.push_back({range.at(0), range.at(1)});
  }
}

}  // namespace sestina
