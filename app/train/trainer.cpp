#include "app/train/trainer.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/start/instruction_set.hpp"
#include "app/train/evaluation.hpp"
#include "app/train/restore.hpp"
#include "core/layout/tensor_sums.hpp"
#include "io/store/npy_write.hpp"
#include "parallel/plan/plan_collectives.hpp"

namespace sestina {
namespace {

constexpr std::int64_t max_skips_in_a_row = 20;  // more of them is divergence, not an accident

StepReport::Setting report_setting(const Options& options, bool first, bool progress) {
  StepReport::Setting setting;
  setting.steps = options.run.steps;
  setting.every = options.metrics.every;
  setting.tokens_per_step =
      static_cast<std::uint64_t>(options.train.global_batch) * static_cast<std::uint64_t>(options.data.sequence_length);
  setting.flops_per_token = flops_per_token(options.model, options.data.sequence_length);
  setting.peak_tflops = options.machine.peak_tflops;
  setting.quiet = !first;
  setting.progress = progress;
  return setting;
}

// NaN without the sign that some processors give it.
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
  return group;
}

// run_dir/failed/<tensor>.<factor>.npy: the last factor of that name that could not be decomposed. Losing it must not
// stop the run.
void dump_factor(const std::string& run_dir, const std::string& name, const std::vector<float>& values,
                 std::size_t d) try {
  std::string file = name.substr(std::string_view("/optimizer/").size());
  std::replace(file.begin(), file.end(), '/', '.');
  write_npy(run_dir + "/failed/" + file + ".npy", values.data(), d, d);
} catch (const Error& error) {
  spdlog::warn("{}", error.what());
}

}  // namespace

template <class Exec, class T>
Trainer<Exec, T>::Trainer(const Exec& exec, const TrainSetup& setup, Runtime& runtime, const SampleSet& training,
                          const SampleSet* validation, Stop& stop, Metrics& metrics)
    : setup_(setup),
      options_(setup.options),
      runtime_(runtime),
      stop_(stop),
      metrics_(metrics),
      exec_(exec),
      trace_(options_, setup.run_dir, runtime.world()),
      model_(exec, options_, runtime.world(), trace_.get()),
      schedule_(options_.schedule),
      training_(training),
      validation_(validation),
      checkpoints_(setup.run_dir, options_.checkpoint, writer_group(options_, runtime)),
      report_(report_setting(options_, runtime.is_first(), setup.progress), metrics),
      rank_steps_(static_cast<std::size_t>(runtime.size())) {
  model_.initialise(options_.run.seed);
  model_.session().optimizer().dump_failures(
      [this](const auto& name, const auto& values, std::size_t d) { dump_factor(setup_.run_dir, name, values, d); });
  runtime_.together([this] {  // files are read: one rank may fail
    if (!setup_.checkpoint.empty())
      load();
    else if (!options_.model.from_hf.empty())
      restore_hf_weights(model_.session(), model_.model_fields(), options_.model, options_.model.from_hf);
  });
  model_.weights_changed();
  if (options_.metrics.tensors_every > 0)
    diagnostics_ = std::make_unique<TensorDiagnostics<Exec, T>>(exec_, model_.session().tensors());
  const BatchShare& share = model_.share();
  const auto B = static_cast<std::uint64_t>(share.micro_batch);
  loader_ =
      std::make_unique<DataLoader>(training_, share.micro_batch, options_.data.sequence_length,
                                   sample_ + B * static_cast<std::uint64_t>(share.first),
                                   BatchPattern{share.count, B * static_cast<std::uint64_t>(share.all - share.count)});
}

template <class Exec, class T>
ExitCode Trainer<Exec, T>::run() {
  if (step_ >= options_.run.steps) {
    spdlog::info("nothing to do: the run is at step {} of {}", step_, options_.run.steps);
    return ExitCode::done;
  }
  while (step_ < options_.run.steps && !stop_voted()) {
    const std::int64_t before = step_;
    if (!step()) continue;
    const bool updated = step_ > before;  // false: the update was skipped, and this step has been seen to already
    const auto due = [&](std::int64_t every) { return updated && every > 0 && step_ % every == 0; };
    if (due(options_.metrics.eval_every)) evaluate();
    if (save_voted_ || due(options_.checkpoint.every)) save();
    drain_events();
    if (saves_fail_ || (!several() && checkpoints_.failures_in_a_row() >= 2))
      fail_on_all(ExitCode::io_error, "two checkpoints in a row could not be written to {}", setup_.run_dir);
  }
  trace_.finish();
  if (!stopped_ && options_.metrics.eval_every > 0 && step_ % options_.metrics.eval_every != 0) evaluate();
  if (saved_step_ != step_) save();
  wait_for_saves();
  drain_events();
  model_.finish_gather();
  double unsaved = saved_step_ == step_ && checkpoints_.failures_in_a_row() == 0 ? 0 : 1;
  runtime_.world().all_reduce(&unsaved, 1, Reduction::max);  // the first rank knows: all of them wait for it
  const bool saved = unsaved == 0;
  if (!stopped_) {
    if (!saved) fail_on_all(ExitCode::io_error, "the final checkpoint could not be written to {}", setup_.run_dir);
    return ExitCode::done;
  }
  const std::string reason = stop_.reason().empty() ? "another rank" : stop_.reason();
  spdlog::info("stopped by {} at step {}{}", reason, step_,
               saved ? "; run again with -r auto to resume" : "; NOT saved");
  metrics_.event(step_, "stop", reason);
  return saved ? ExitCode::stopped_saved : ExitCode::stopped_unsaved;
}

template <class Exec, class T>
bool Trainer<Exec, T>::step() {  // completes update number step_ + 1
  trace_.before_step();
  model_.take_gather_seconds();  // an evaluation may have waited for weights, or the last update was skipped
  model_.take_reduce_seconds();
  clock_.start();
  if (!accumulate()) return false;
  const auto [loss, norm, weights_finite] = model_.complete();  // gradients are with their owners
  if (!weights_finite) fail_diverged(fmt::format("weights written by step {} are not finite", step_));
  loss_ = loss / (static_cast<double>(options_.train.global_batch) * options_.data.sequence_length);
  // A device is waited for in there: on one rank, for its forward and backward passes.
  clock_.end(several() || is_host<Exec> ? Phase::reduce : Phase::forward_backward);
  if (several() && stop_voted()) return false;
  sample_ += static_cast<std::uint64_t>(options_.train.global_batch);
  if (!finite(loss_, norm)) return true;  // decided before the update: weights and moments are untouched
  const double factor = schedule_.factor(step_ + 1);
  const bool diagnose = diagnostics_ && (step_ + 1) % options_.metrics.tensors_every == 0;
  if (diagnose) diagnostics_->before_update(exec_);
  model_.update(step_ + 1, factor,
                clip_scale(norm, clip_norm_at(options_.model.linear, options_.train.clip_norm, step_ + 1)));
  clock_.end(Phase::optimizer);
  note_refresh_failures();
  ++step_;
  tokens_ += static_cast<std::uint64_t>(options_.train.global_batch) *
             static_cast<std::uint64_t>(options_.data.sequence_length);
  if (diagnose) write_diagnostics();
  report(norm, factor);
  return true;
}

template <class Exec, class T>
void Trainer<Exec, T>::report(double norm, double factor) {
  Optimizer<Exec, T>& optimizer = model_.session().optimizer();
  clock_.move(Phase::optimizer, Phase::refresh, optimizer.take_refresh_seconds());
  clock_.move(Phase::optimizer, Phase::gather, model_.take_home_seconds());
  clock_.move(Phase::forward_backward, Phase::gather, model_.take_gather_seconds());
  clock_.move(Phase::forward_backward, Phase::reduce, model_.take_reduce_seconds());
  update_seconds_ += clock_[Phase::optimizer] + clock_[Phase::refresh];
  ++updates_;
  static_assert(sizeof(RankStep) == RunMessages::times * sizeof(double));
  const RankStep mine{clock_.seconds(), static_cast<double>(peak_memory_bytes()),
                      static_cast<double>(optimizer.preconditioner_age())};
  runtime_.world().all_gather(&mine, sizeof mine, rank_steps_.data());
  const RankStep all = of_all_ranks(rank_steps_);
  longest_step_ = std::max(longest_step_, all.seconds.back());
  report_.step(step_, tokens_, loss_, norm, factor * options_.optimizer.lr, skipped_, all);
}

template <class Exec, class T>
void Trainer<Exec, T>::write_loads() {
  if (!several() || updates_ == 0) return;
  const double mine = update_seconds_ / static_cast<double>(updates_);
  std::vector<double> seconds(static_cast<std::size_t>(runtime_.size()));
  runtime_.world().all_gather(&mine, sizeof mine, seconds.data());
  metrics_.loads(step_, seconds, model_.plan().rank_cost);
  update_seconds_ = 0;
  updates_ = 0;
}

template <class Exec, class T>
bool Trainer<Exec, T>::accumulate() {
  const double scale = 1.0 / (static_cast<double>(options_.train.global_batch) * options_.data.sequence_length);
  const int micros = model_.share().count;
  for (int micro = 0; micro < micros; ++micro) {
    {
      const TraceSpan span(trace_.get(), "data");
      loader_->next(batch_);
    }
    clock_.end(Phase::data);
    model_.session().load(batch_.tokens.data(), options_.data.mask_documents ? batch_.first_key.data() : nullptr);
    model_.forward_backward(scale, micro);
    clock_.end(Phase::forward_backward);
    if (!several() && micro + 1 < micros && stop_voted()) return false;
  }
  return true;
}

template <class Exec, class T>
bool Trainer<Exec, T>::finite(double loss, double norm) {
  if (std::isfinite(loss) && std::isfinite(norm)) {
    skipped_in_a_row_ = 0;
    return true;
  }
  const std::string what =
      fmt::format("loss {} and grad_norm {} in step {} (samples {} to {})", plain(loss), plain(norm), step_ + 1,
                  sample_ - static_cast<std::uint64_t>(options_.train.global_batch), sample_ - 1);
  if (options_.run.on_nonfinite == RunOptions::OnNonfinite::stop || skipped_in_a_row_ >= max_skips_in_a_row)
    fail_diverged(fmt::format("not finite: {}; the last step is not affected", what));
  ++skipped_;
  ++skipped_in_a_row_;
  spdlog::warn("skipped: {}", what);
  metrics_.event(step_, "skip", what);
  return false;
}

// What every rank has found out alike. The checkpoints there are stay as they are.
template <class Exec, class T>
void Trainer<Exec, T>::fail_diverged(const std::string& what) {
  wait_for_saves();
  drain_events();
  metrics_.event(step_, "diverged", what);
  const std::string newest =
      newest_step_ < 0 ? "no checkpoint was saved" : fmt::format("the newest checkpoint is of step {}", newest_step_);
  fail_on_all(ExitCode::diverged, "{}; {}", what, newest);
}

template <class Exec, class T>
void Trainer<Exec, T>::note_refresh_failures() {
  const std::int64_t failures = model_.session().optimizer().refresh_failures();
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
  std::vector<Metrics::TensorLine> lines;
  for (std::size_t i = 0; i < values.size(); ++i)
    lines.push_back(
        {model_.session().tensors()[i].spec.name, values[i].weight_rms, values[i].update_rms, values[i].spectral_norm});
  metrics_.tensors(step_, lines);
}

template <class Exec, class T>
bool Trainer<Exec, T>::stop_voted() {
  const TraceSpan span(trace_.get(), "vote", -1, Trace::Kind::wait);
  const double reserve = 1.5 * checkpoints_.longest_save_seconds() + longest_step_;
  const Stop::Vote vote = stop_.poll(reserve);
  double votes[RunMessages::votes] = {vote == Stop::Vote::stop ? 1.0 : 0.0, vote == Stop::Vote::save ? 1.0 : 0.0,
                                      checkpoints_.failures_in_a_row() >= 2 ? 1.0 : 0.0};
  runtime_.world().all_reduce(votes, RunMessages::votes, Reduction::max);  // a vote at one rank is enough
  if (votes[1] > 0) save_voted_ = true;
  if (votes[0] > 0) stopped_ = true;
  saves_fail_ = votes[2] > 0;
  return stopped_;
}

template <class Exec, class T>
void Trainer<Exec, T>::evaluate() {
  if (validation_ == nullptr) return;
  report_.clear_bar();
  const TraceSpan span(trace_.get(), "evaluation");
  const double start = now_seconds();
  EvaluationShare share{model_.grid().dp_rank, model_.grid().dp, {}};
  if (share.parts > 1)
    share.sum = [this](std::vector<double>& losses) {
      model_.grid().dp_group->all_reduce(losses.data(), losses.size(), Reduction::sum);
    };
  const auto result = evaluate_loss(
      model_.session(), *validation_, options_.metrics.eval_batches, [this] { return stop_voted(); }, share);
  if (!result) return;  // stopped meanwhile: half an evaluation is none
  const double seconds = now_seconds() - start;
  metrics_.validation(step_, tokens_, result->loss, result->bits_per_byte, seconds);
  if (result->bits_per_byte)
    spdlog::info("step {:>6}  validation loss {:.4f}  bits per byte {:.4f}  ({:.1f} s)", step_, result->loss,
                 *result->bits_per_byte, seconds);
  else
    spdlog::info("step {:>6}  validation loss {:.4f}  ({:.1f} s)", step_, result->loss, seconds);
}

template <class Exec, class T>
RunState Trainer<Exec, T>::run_state() const {
  RunState state;
  state.step = step_;
  state.sample = sample_;
  state.tokens = tokens_;
  state.seed = options_.run.seed;
  state.deck = setup_.deck;
  state.tokenizer_digest = setup_.tokenizer_digest;
  state.instruction_set = instruction_set();
  state.loss = loss_;
  state.extra = nlohmann::json{{"skipped", skipped_}}.dump();
  return state;
}

template <class Exec, class T>
void Trainer<Exec, T>::save() {
  report_.clear_bar();
  const TraceSpan span(trace_.get(), "checkpoint snapshot");
  wait_for_saves();
  Snapshot& slot = checkpoints_.slot();
  drain_events();
  require_run_dir();
  take_snapshot(
      model_.fields(), run_state(),
      [this](const StateField& field, void* host) { model_.session().copy_to_host(field, host); }, slot);
  std::string problem;
  for (const std::string& found : runtime_.world().all_gather(slot.problem))
    if (problem.empty()) problem = found;
  if (!problem.empty()) fail_diverged(fmt::format("step {} is not saved: {}", step_, problem));
  checkpoints_.save();
  write_loads();
  saved_step_ = step_;
  save_voted_ = false;
}

template <class Exec, class T>
void Trainer<Exec, T>::require_run_dir() {
  runtime_.together([this] {
    if (setup_.held) setup_.held->require_held();
    const std::string problem = metrics_.problem();
    if (!problem.empty()) fail(ExitCode::io_error, "{}", problem);
  });
}

// Ranks stay in touch meanwhile: a disk that is slow for one of them is no reason to take it for lost.
template <class Exec, class T>
void Trainer<Exec, T>::wait_for_saves() {
  for (double busy = several() ? 1 : 0; busy > 0;) {
    busy = checkpoints_.busy() ? 1 : 0;
    runtime_.world().all_reduce(&busy, 1, Reduction::max);
    if (busy > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  checkpoints_.wait();
}

template <class Exec, class T>
void Trainer<Exec, T>::drain_events() {
  for (const CheckpointWriter::Event& event : checkpoints_.take_events()) {
    metrics_.checkpoint(event.step, event.path, event.seconds, event.bytes, event.error);
    report_.clear_bar();
    if (event.error.empty()) newest_step_ = event.step;
    if (event.error.empty())
      spdlog::info("step {:>6}  saved {} ({:.1f} MB, {:.2f} s)", event.step, event.path,
                   static_cast<double>(event.bytes) * 1e-6, event.seconds);
    else
      spdlog::warn("step {:>6}  NOT saved: {}", event.step, event.error);
  }
}

template <class Exec, class T>
void Trainer<Exec, T>::load() {
  // The first rank has verified all of it when it was chosen; each one checks what it opens.
  const CheckpointReader reader(setup_.checkpoint,
                                options_.checkpoint.verify_full ? Verify::full
                                : several()                     ? Verify::opened
                                                                : Verify::all,
                                setup_.poll);
  if (setup_.weights_only) {
    restore_model(model_.session(), reader, model_.model_fields(), options_.model);
    spdlog::info("weights of {} (step {}); step, optimizer and data start from 0", setup_.checkpoint,
                 reader.run().step);
    if (!setup_.fork && reader.run().step == 0) saved_step_ = 0;  // an import: it lies there already
    return;
  }
  const RunState& run = reader.run();
  if (!setup_.tokenizer_digest.empty() && !run.tokenizer_digest.empty() &&
      run.tokenizer_digest != setup_.tokenizer_digest)
    fail(ExitCode::bad_data, "{}: written with another tokenizer (digest {}, now {})", setup_.checkpoint,
         run.tokenizer_digest, setup_.tokenizer_digest);
  restore(model_.session(), reader, model_.model_fields(), false);
  restore(model_.session(), reader, model_.optimizer_fields(), options_.optimizer.reset_missing);
  step_ = run.step;
  sample_ = run.sample;
  tokens_ = run.tokens;
  if (!setup_.fork) {
    saved_step_ = newest_step_ = run.step;
    checkpoints_.resumed_from(setup_.checkpoint);
  }
  if (!run.extra.empty()) skipped_ = nlohmann::json::parse(run.extra).value("skipped", std::int64_t{0});
  if (run.instruction_set != instruction_set())
    spdlog::warn("{} was written on {}, this is {}: the run continues, but not bit for bit", setup_.checkpoint,
                 run.instruction_set, instruction_set());
  spdlog::info("resumed from {} at step {}", setup_.checkpoint, step_);
  metrics_.rewind(step_, step_);
}

#define SESTINA_TRAINER(Exec, T) template class Trainer<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_TRAINER)

}  // namespace sestina
