#include "app/train/trainer.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "app/train/evaluation.hpp"
#include "app/train/refresh_setup.hpp"
#include "app/train/restore.hpp"
#include "app/watch/first_bad_search.hpp"
#include "core/layout/tensor_spec.hpp"
#include "io/store/output_file.hpp"
#include "kernels/base/device_memory.hpp"

namespace sestina {
namespace {

constexpr std::int64_t max_skips_in_a_row = 20;  // more of them is divergence, not an accident

StepReport::Options report_options(const Options& options, bool first, bool progress) {
  StepReport::Options setting;
  setting.steps = options.run.steps;
  setting.every = options.metrics.every;
  setting.tokens_per_step =
      static_cast<std::uint64_t>(options.train.global_batch) * static_cast<std::uint64_t>(options.data.sequence_length);
  setting.flops_per_token = flops_per_token(options);
  setting.peak_tflops = options.machine.peak_tflops;
  setting.workers = options.optimizer.refresh_workers() > 0;
  setting.drift = options.optimizer.matrix && options.optimizer.matrix->refresh_drift > 0;
  setting.quiet = !first;
  setting.progress = progress;
  return setting;
}

// Writes NaN without the sign that some processors give it.
double plain(double value) { return std::isnan(value) ? std::abs(value) : value; }

// The ranks name their common temporary folders by the process number of the first.
WriterGroup writer_group(const Options& options, Runtime& runtime) {
  WriterGroup group;
  group.rank = runtime.rank();
  group.ranks = runtime.size();
  group.token = std::to_string(::getpid());
  runtime.world().broadcast(group.token, 0);
  group.timeout = options.run.abort_timeout;
  group.dp = options.parallel.dp;
  group.tp = options.parallel.tp;
  group.pp = runtime.size() / (group.dp * group.tp);
  return group;
}

// The first rank of a node reads its counters, and those of the devices of all its ranks.
EnergyCounters::Options energy_options(EnergyCounters::Options setting, Runtime& runtime, bool on_device) {
  setting.devices.bus_ids = runtime.world().split_by_node()->all_gather(on_device ? device_bus_id() : std::string());
  if (runtime.is_first_of_node()) return setting;
  return {.root = ""};
}

// Writes run_dir/failed/<tensor>.<factor>.npy: the last factor of that name that could not be decomposed. Losing it
// must not stop the run.
void dump_factor(const std::string& run_dir, const std::string& name, const std::vector<float>& values,
                 std::size_t d) try {
  std::string file = name.substr(std::string_view("/optimizer/").size());
  std::replace(file.begin(), file.end(), '/', '.');
  write_npy(run_dir + "/failed/" + file + ".npy", values.data(), d, d);
} catch (const Error& error) {
  spdlog::warn("{}", error.what());
}

}  // namespace

Trainer::Trainer(const StageMaker& stages, const TrainSetup& setup, Runtime& runtime, const SampleSet& training,
                 const SampleSet* validation, Stop& stop, Metrics& metrics)
    : setup_(setup),
      options_(setup.options),
      runtime_(runtime),
      stop_(stop),
      metrics_(metrics),
      on_device_(stages.memory() == MemorySpace::device),
      trace_(options_, setup.run_dir, runtime.world()),
      flips_(setup.fault, runtime.world()),
      executor_(stages, setup.planned.plan, flips_.world(), trace_.get()),
      schedule_(options_.schedule),
      batches_(training, options_, executor_.share()),
      training_(training),
      validation_(validation),
      proof_(executor_.plan()),
      checkpoints_(setup.run_dir, options_.checkpoint, writer_group(options_, runtime)),
      report_(report_options(options_, runtime.is_first(), setup.progress), metrics),
      told_(told_parts(options_.parallel, options_.optimizer, options_.model)),
      clock_(executor_.clock()),
      energy_(energy_options(setup.energy, runtime, on_device_)),
      pace_(runtime.size()) {
  if (options_.run.on_spike != RunOptions::OnSpike::off)
    spikes_.emplace(SpikeRule{options_.run.spike_window, options_.run.spike_factor});
  checkpoints_.carry(setup.companions);
  executor_.initialise(options_.run.seed);
  runtime_.together([&] {  // a disk may be full
    tier_ = open_tier_of(executor_, options_, setup.run_dir, runtime.rank(), stages.memory());
  });
  if (tier_ && trace_.get() != nullptr) tier_->record();
  for (PipelineStage* stage : executor_.runs()) {
    OptimizerControl& optimizer = stage->optimizer_control();
    optimizer.dump_failures(
        [this](const auto& name, const auto& values, std::size_t d) { dump_factor(setup_.run_dir, name, values, d); });
    trace_.set_workers(optimizer.workers(), options_.optimizer.refresh_workers());
  }
  runtime_.together([this] {  // files are read: one rank may fail
    if (!setup_.checkpoint.empty())
      load();
    else if (!options_.model.from_hf.empty())
      restore_hf_weights(executor_, executor_.model_fields(), options_.model, options_.model.from_hf);
  });
  executor_.weights_changed();
  set_refreshes();
  if (const auto& matrix = options_.optimizer.matrix; matrix && matrix->refresh_drift > 0)
    spdlog::info("refresh    sides whose bases have drifted by more than {}, looked at every {} updates",
                 matrix->refresh_drift, matrix->refresh_every);
  if (options_.metrics.tensors_every > 0 && executor_.lag() == 0)
    diagnostics_ = stages.make_diagnostics(executor_.runs(), executor_.plan());
  batches_.start_at(sample_);
  start_audits(stages);
}

// A resumed run keeps its periods, and who refreshes, on whatever machine it goes on: they decide its bits.
void Trainer::set_refreshes() {
  const RefreshOptions& refresh = options_.optimizer.refresh;
  const bool fits = refresh.automatic && periods_.of.empty(),
             chooses = refresh.chooses_executor && executors_.in_update.empty(),
             lags = refresh.fits_staleness && lag_.updates == 0;
  RefreshSpeed speed;
  if (fits || chooses || lags) speed = measure_speed(executor_, training_, options_, runtime_.world());
  if (fits) {
    periods_ = fit_periods(executor_.plan(), speed);
    spdlog::info("refresh    {}: an update takes {:.3g} s, a worker refreshes {}", to_text(periods_), speed.step_s,
                 to_text(speed));
    if (periods_.late > 0)
      spdlog::warn(
          "{} matrices take a worker longer to refresh than optimizer.refresh.staleness = {} updates: these wait",
          periods_.late, options_.optimizer.matrix->refresh_staleness);
  } else if (refresh.automatic) {
    spdlog::info("refresh    {}, as the checkpoint says", to_text(periods_));
  }
  if (refresh.automatic) use_periods(executor_, periods_);
  if (refresh.fits_staleness) set_staleness(lags, speed);
  if (chooses)
    executors_ = agreed_executors(executor_, speed, periods_);
  else if (refresh.chooses_executor)
    spdlog::info("refresh    {}, as the checkpoint says", to_text(executors_));
  if (refresh.chooses_executor) use_executors(executor_, executors_);
}

void Trainer::set_staleness(bool is_new, const RefreshSpeed& speed) {
  if (is_new) lag_ = fit_staleness(executor_.plan(), speed);
  if (is_new)
    spdlog::info("refresh    results are {}: an update takes {:.3g} s, a worker refreshes {}", to_text(lag_),
                 speed.step_s, to_text(speed));
  else
    spdlog::info("refresh    results are {}, as the checkpoint says", to_text(lag_));
  if (!lag_.is_enough)
    spdlog::warn("workers need more than the {} updates of optimizer.refresh.{} for all refreshes: updates wait",
                 lag_.updates + 1, options_.optimizer.matrix->refresh_drift > 0 ? "drift_check" : "every");
  use_staleness(executor_, lag_);
}

ExitCode Trainer::run() {
  if (step_ >= options_.run.steps) {
    spdlog::info("nothing to do: the run is at step {} of {}", step_, options_.run.steps);
    return ExitCode::done;
  }
  while (step_ < options_.run.steps && !(told_.votes ? stopped_ : stop_voted())) {
    const StepOutcome outcome = step();
    if (outcome == StepOutcome::dropped) continue;
    if (outcome == StepOutcome::goes_back) break;
    const bool updated = outcome == StepOutcome::updated;  // else `due` was already asked at this step
    const auto due = [&](std::int64_t every) { return updated && every > 0 && step_ % every == 0; };
    const bool evaluates = due(options_.metrics.eval_every), saves = save_voted_ || due(options_.checkpoint.every);
    const bool measured = due(options_.metrics.updates_every), proves = measured || (updated && !proved_);
    const bool turned = due(options_.metrics.rotations_every);
    const LinearOptions& linear = options_.model.linear;
    const bool looks = linear.merge_bound > 0 && due(linear.merge_bound_every);
    if (evaluates || saves || proves || turned || looks) finish_steps();
    if (proves) prove_updates(measured);
    if (turned) write_rotations();
    if (looks) note_early_merges();
    if (evaluates) evaluate();
    if (saves) save();
    drain_events();
    if (!several()) saves_fail_ = failed_saves(2);
    if (saves_fail_ > 0) fail_unsaved(saves_fail_, "two checkpoints in a row");
  }
  finish_steps();
  trace_.finish();
  report_.energy(step_, energy_.domains());
  if (rollback_) {
    executor_.finish_gather();
    return ExitCode::done;
  }
  if (!stopped_ && options_.metrics.eval_every > 0 && step_ % options_.metrics.eval_every != 0) evaluate();
  if (saved_step_ != step_) save();
  wait_for_saves();
  drain_events();
  executor_.finish_gather();
  double unsaved = saved_step_ == step_ ? failed_saves(1) : 1;
  runtime_.world().all_reduce(&unsaved, 1, Reduction::max);  // only the first rank knows
  const bool saved = unsaved == 0;
  require_data(saved);
  if (!stopped_) {
    if (!saved) fail_unsaved(unsaved, "the final checkpoint");
    return ExitCode::done;
  }
  const std::string reason = stop_.reason().empty() ? "another rank" : stop_.reason();
  spdlog::info("stopped by {} at step {}{}", reason, step_,
               saved ? "; run again with -r auto to resume" : "; NOT saved");
  metrics_.event(step_, "stop", reason);
  return saved ? ExitCode::stopped_saved : ExitCode::stopped_unsaved;
}

StepOutcome Trainer::step() {  // completes update number step_ + 1
  trace_.before_step();
  executor_.take_seconds();  // an evaluation may have waited for weights, or the last update was refused
  clock_.start();
  energy_.take_joules();  // what an evaluation or a save took is not the step's
  if (tier_) moved_.waited = tier_->counts().waited;
  processor_seconds_ = processor_seconds();
  const Passes passes = audited_passes();
  if (passes.dropped) return StepOutcome::dropped;
  if (passes.sums) {
    const bool accepted = accept(*passes.sums);
    const StepOutcome refusal = stopped_ ? StepOutcome::dropped : StepOutcome::refused;
    const StepOutcome outcome = accepted ? hold_spike(*passes.sums) : refusal;
    if (outcome != StepOutcome::updated) {
      executor_.withdraw();
      return outcome;
    }
    update();
  }
  fill_report(executor_.report());
  for (const FinishedStep& step : executor_.exchange(told_)) finish(step);
  if (rollback_) return StepOutcome::goes_back;
  if (!passes.sums) {  // stages were updated in the passes, with nothing to decide
    note_refresh_failures();
    sample_ += static_cast<std::uint64_t>(options_.train.global_batch);
  }
  tokens_ += static_cast<std::uint64_t>(options_.train.global_batch) *
             static_cast<std::uint64_t>(options_.data.sequence_length);
  ++step_;
  return StepOutcome::updated;
}

Passes Trainer::run_passes(const std::function<bool()>& interrupted) {
  const bool spoilt = setup_.fault && setup_.fault->kind == PlannedFault::Kind::nan &&
                      setup_.fault->is_due("activation", step_ + 1, runtime_.rank());
  if (spoilt) executor_.run().spoil_next_forward();
  return executor_.backward(step_ + 1, schedule_.factor(step_ + 1), batches_, interrupted);
}

void Trainer::require_data(bool saved) {
  const std::optional<Error>& lost = batches_.lost();
  if (lost) metrics_.event(step_, "stop", lost->what());
  runtime_.together([&] {
    if (lost)
      fail(lost->code(), "{}; stopped at step {}{}", lost->what(), step_,
           saved ? ", which is saved: with the data in their place run again with -r auto" : ", NOT saved");
  });
}

// Decides before the update of a synchronous step: a step that is refused leaves weights and moments untouched.
bool Trainer::accept(const StepSums& sums) {
  if (!sums.weights_finite) fail_weights(step_);
  loss_ = mean_loss(sums);
  // The sums waited for the device; on one rank that is a wait for its forward and backward passes.
  clock_.end(several() || !on_device_ ? Phase::reduce : Phase::forward_backward);
  const bool voted = options_.parallel.overlap_updates;  // before the first matrix was updated
  if (!voted && (several() || batches_.lost()) && stop_voted()) return false;
  sample_ += static_cast<std::uint64_t>(options_.train.global_batch);
  return finite(step_ + 1, loss_, sums.norm);
}

void Trainer::update() {
  const bool diagnose = diagnostics_ && (step_ + 1) % options_.metrics.tensors_every == 0;
  if (diagnose) diagnostics_->before_update();
  executor_.update();
  note_refresh_failures();
  if (!diagnose) return;
  executor_.finish_steps();
  write_diagnostics();
}

// Handles an update that all ranks know now, an asynchronous one some updates later; all ranks decide the same.
void Trainer::finish(const FinishedStep& step) {
  if (told_.votes) count_votes(step.report.votes);
  if (!step.sums.weights_finite) fail_weights(step.update);
  loss_ = mean_loss(step.sums);
  finite(step.update, loss_, step.sums.norm, &step);
  report(step);
  watch_finished(step);
}

void Trainer::finish_steps() {
  for (const FinishedStep& step : executor_.finish_steps()) finish(step);
}

bool Trainer::finite(std::int64_t update, double loss, double norm, const FinishedStep* late) {
  if (std::isfinite(loss) && std::isfinite(norm)) {
    skipped_in_a_row_ = 0;
    return true;
  }
  std::string what =
      fmt::format("loss {} and grad_norm {} in step {} (samples {} to {})", plain(loss), plain(norm), update,
                  sample_ - static_cast<std::uint64_t>(options_.train.global_batch), sample_ - 1);
  if (skipped_in_a_row_ == 0) what += ", " + find_first_bad(update, late);
  if (options_.run.on_nonfinite == RunOptions::OnNonfinite::stop || skipped_in_a_row_ >= max_skips_in_a_row)
    fail_diverged(fmt::format("not finite: {}{}", what,
                              options_.parallel.overlap_updates ? "" : "; the last step is not affected"));
  ++skipped_;
  ++skipped_in_a_row_;
  spdlog::warn("skipped: {}", what);
  metrics_.event(update - 1, "skip", what);
  return false;
}

// Says where a step began that is not finite. In an asynchronous pipeline its stages have been updated meanwhile, with
// parallel.overlap_updates some of its matrices: it can only be said which of them had gradients that are not finite.
std::string Trainer::find_first_bad(std::int64_t update, const FinishedStep* late) {
  std::optional<FirstBadOfRanks> found;
  std::string text;
  if (late != nullptr) {
    std::vector<int> stages;
    for (std::size_t stage = 0; stage < late->report.stages.size(); ++stage)
      if (!std::isfinite(late->report.stages[stage].squares)) stages.push_back(static_cast<int>(stage));
    text = fmt::format("gradients of stages {} are not finite", fmt::join(stages, ", "));
  } else if (options_.parallel.overlap_updates) {
    const std::string tensor = executor_.nonfinite_gradient();
    text = tensor.empty() ? "all gradients are finite"
                          : fmt::format(
                                "gradients are not finite from {} down; matrices whose gradients are finite "
                                "have been updated (parallel.overlap_updates)",
                                tensor);
  } else {
    const std::uint64_t first = sample_ - static_cast<std::uint64_t>(options_.train.global_batch);
    batches_.start_at(first);
    found = search_passes(executor_, runtime_.world(), first, [this] { run_passes_again(); });
    text = found ? to_text(*found) : "but all of it is finite when it is computed again: a fault that has passed";
  }
  if (runtime_.is_first()) write_first_bad(setup_.run_dir, update, found, text);
  return text;
}

void Trainer::fail_weights(std::int64_t update) {
  const std::string which = search_weights(executor_, runtime_.world());
  if (runtime_.is_first() && !which.empty()) write_first_bad(setup_.run_dir, update, std::nullopt, which);
  fail_diverged(fmt::format("weights written by step {} are not finite{}", update, which.empty() ? "" : ": " + which));
}

// Fails for what every rank has found out. Existing checkpoints stay as they are.
void Trainer::fail_unsafe(ExitCode code, const char* event, const std::string& what) {
  wait_for_saves();
  drain_events();
  metrics_.event(step_, event, what);
  const std::string newest =
      newest_step_ < 0 ? "no checkpoint was saved" : fmt::format("the newest checkpoint is of step {}", newest_step_);
  fail_on_all(code, "{}; {}", what, newest);
}

Votes Trainer::votes() {
  const double steps = 1.0 + executor_.lag();  // steps until a vote takes effect
  const Stop::Vote vote = stop_.poll(1.5 * checkpoints_.longest_save_seconds() + steps * longest_step_);
  return {vote == Stop::Vote::stop || batches_.lost() ? 1.0 : 0.0, vote == Stop::Vote::save ? 1.0 : 0.0,
          failed_saves(2)};
}

void Trainer::count_votes(const Votes& all) {
  if (all.save > 0) save_voted_ = true;
  if (all.stop > 0) stopped_ = true;
  saves_fail_ = all.failed_saves;
}

bool Trainer::stop_voted() {
  const TraceSpan span(trace_.get(), "vote", -1, Trace::Kind::wait);
  Votes all = votes();
  runtime_.world().all_reduce(&all.stop, sizeof all / sizeof(double), Reduction::max);  // one rank's vote is enough
  count_votes(all);
  return stopped_;
}

void Trainer::evaluate() {
  if (validation_ == nullptr) return;
  report_.clear_bar();
  const TraceSpan span(trace_.get(), "evaluation");
  executor_.synchronise();
  const double start = now_seconds();
  const bool at_average = options_.optimizer.adamw.averages();  // then the model is the average
  if (at_average) executor_.swap_average();
  const auto result = evaluate_loss(
      executor_, *validation_, options_.metrics.eval_batches, [this] { return stop_voted(); },
      [this](const Error& error) { batches_.lose(error); });
  if (at_average) executor_.swap_average();
  double lost = batches_.lost() ? 1 : 0;
  runtime_.world().all_reduce(&lost, 1, Reduction::max);
  if (!result || lost > 0) return;  // stopped meanwhile: half an evaluation is none
  const double seconds = now_seconds() - start;
  metrics_.validation(step_, tokens_, result->loss, result->bits_per_byte, seconds);
  if (result->bits_per_byte)
    spdlog::info("step {:>6}  validation loss {:.4f}  bits per byte {:.4f}  ({:.1f} s)", step_, result->loss,
                 *result->bits_per_byte, seconds);
  else
    spdlog::info("step {:>6}  validation loss {:.4f}  ({:.1f} s)", step_, result->loss, seconds);
}

}  // namespace sestina
