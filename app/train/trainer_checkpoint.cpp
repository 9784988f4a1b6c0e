// The trainer's checkpoints: saved between updates, and read back at the start.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/train/restore.hpp"
#include "app/train/trainer.hpp"
#include "core/optimizer/base/routing.hpp"
#include "kernels/blas/instruction_set.hpp"

namespace sestina {
namespace {

nlohmann::json json_of(const PipelineState& pipeline) {
  nlohmann::json all{{"ahead", pipeline.ahead},    {"layers", pipeline.layers},         {"micros", pipeline.micros},
                     {"stash", pipeline.stash},    {"correction", pipeline.correction}, {"origin", pipeline.origin},
                     {"started", pipeline.started}};
  if (pipeline.replicas > 0) all["replicas"] = pipeline.replicas;
  if (pipeline.shards > 0) all["shards"] = pipeline.shards;
  for (const double norm : pipeline.norms)  // JSON has no word for what is not finite
    all["norms"].push_back(std::isfinite(norm) ? nlohmann::json(norm) : nlohmann::json());
  return all;
}

// like: the state of this run, whose cut of stages is assumed where the checkpoint does not say its own.
PipelineState state_from(const nlohmann::json& stored, const PipelineState& like) {
  PipelineState state;
  state.ahead = stored.at("ahead").get<std::vector<int>>();
  state.layers = stored.value("layers", like.layers);
  state.micros = stored.at("micros");
  state.stash = stored.at("stash");
  state.correction = stored.value("correction", "none");
  state.origin = stored.at("origin");
  state.started = stored.at("started");
  state.replicas = stored.value("replicas", 0);
  state.shards = stored.value("shards", 0);
  for (const nlohmann::json& norm : stored.value("norms", nlohmann::json::array()))
    state.norms.push_back(norm.is_null() ? std::numeric_limits<double>::quiet_NaN() : norm.get<double>());
  return state;
}

}  // namespace

RunState Trainer::run_state() const {
  RunState state;
  state.step = step_;
  state.sample = sample_;
  state.tokens = tokens_;
  state.seed = options_.run.seed;
  state.deck = setup_.deck;
  state.tokenizer_digest = setup_.tokenizer_digest;
  state.instruction_set = instruction_set();
  state.loss = loss_;
  nlohmann::json extra{{"skipped", skipped_}};
  if (const auto pipeline = executor_.pipeline_state()) extra["pipeline"] = json_of(*pipeline);
  if (!periods_.of.empty()) extra["refresh_periods"] = periods_.of;
  if (lag_.updates > 0) extra["refresh_staleness"] = lag_.updates;
  if (!executors_.in_update.empty()) extra["refresh_executors"] = executors_.in_update;
  save_spikes(extra);
  state.extra = extra.dump();
  return state;
}

std::vector<StateField> Trainer::all_fields() const {
  std::vector<StateField> fields = executor_.fields();
  for (StateField& field : executor_.in_flight_fields(false)) fields.push_back(std::move(field));
  return fields;
}

void Trainer::save() {
  report_.clear_bar();
  const TraceSpan span(trace_.get(), "checkpoint snapshot");
  if (options_.checkpoint.drains && executor_.lag() > 0) drain_pipeline();
  executor_.synchronise();
  wait_for_saves();
  Snapshot& slot = checkpoints_.slot();
  drain_events();
  require_run_dir();
  const auto copy = [this](const StateField& field, void* host) { executor_.copy_to_host(field, host); };
  take_snapshot(all_fields(), run_state(), copy, slot, options_.checkpoint.async);
  if (bits_) flips_.in_copies(step_, slot.fields, *bits_);
  require_finite_state(slot.problem);
  checkpoints_.start();
  for (double waits = 1; waits > 0;) {                                       // ranks stay in touch
    runtime_.together([&] { waits = checkpoints_.advance(copy) ? 1 : 0; });  // a disk may fail
    runtime_.world().all_reduce(&waits, 1, Reduction::max);
  }
  require_finite_state(checkpoints_.streamed_problem());
  write_loads();
  saved_step_ = step_;
  save_voted_ = false;
}

void Trainer::require_finite_state(const std::string& mine) {
  std::string problem;
  for (const std::string& found : runtime_.world().all_gather(mine))
    if (problem.empty()) problem = found;
  if (!problem.empty()) fail_diverged(fmt::format("step {} is not saved: {}", step_, problem));
}

double Trainer::failed_saves(int in_a_row) const {
  if (checkpoints_.failures_in_a_row() < in_a_row) return 0;
  return checkpoints_.failed_for_memory() ? 2 : 1;
}

void Trainer::fail_unsaved(double failed, const char* what) {
  const bool memory = failed > 1;
  fail_on_all(memory ? ExitCode::unavailable : ExitCode::io_error, "{} could not be written to {}{}", what,
              setup_.run_dir, memory ? ": out of memory" : "");
}

// Drains the pipeline: forward passes that were ahead of the updates run again.
void Trainer::drain_pipeline() {
  executor_.drain(step_);
  batches_.start_at(sample_);
}

void Trainer::require_run_dir() {
  runtime_.together([this] {
    if (setup_.held) setup_.held->require_held();
    const std::string problem = metrics_.problem();
    if (!problem.empty()) fail(ExitCode::io_error, "{}", problem);
  });
}

// Ranks stay in touch meanwhile: a disk that is slow for one of them is no reason to take it for lost.
void Trainer::wait_for_saves() {
  for (double busy = several() ? 1 : 0; busy > 0;) {
    busy = checkpoints_.busy() ? 1 : 0;
    runtime_.world().all_reduce(&busy, 1, Reduction::max);
    if (busy > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  checkpoints_.wait();
}

void Trainer::drain_events() {
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

void Trainer::load() {
  // The first rank has verified all of it when it was chosen; each one checks what it opens.
  const CheckpointReader reader(setup_.checkpoint,
                                options_.checkpoint.verify_full ? Verify::full
                                : several()                     ? Verify::opened
                                                                : Verify::all,
                                setup_.poll);
  require_router_biases(reader, options_.model);
  if (setup_.weights_only) {
    restore_model(executor_, reader, executor_.model_fields(), options_.model);
    spdlog::info("weights of {} (step {}); step, optimizer and data start from 0", setup_.checkpoint,
                 reader.run().step);
    if (!setup_.fork && reader.run().step == 0) saved_step_ = 0;  // an imported checkpoint is there already
    return;
  }
  const RunState& run = reader.run();
  if (!setup_.tokenizer_digest.empty() && !run.tokenizer_digest.empty() &&
      run.tokenizer_digest != setup_.tokenizer_digest)
    fail(ExitCode::bad_data, "{}: written with another tokenizer (digest {}, now {})", setup_.checkpoint,
         run.tokenizer_digest, setup_.tokenizer_digest);
  restore(executor_, reader, executor_.model_fields(), false);
  executor_.start_averages();  // where the checkpoint has none and on_missing = "reset"
  restore(executor_, reader, executor_.optimizer_fields(), options_.optimizer.reset_missing);
  step_ = run.step;
  sample_ = run.sample;
  tokens_ = run.tokens;
  if (!setup_.fork) {
    saved_step_ = newest_step_ = run.step;
    checkpoints_.resumed_from(setup_.checkpoint);
  }
  const nlohmann::json extra = run.extra.empty() ? nlohmann::json::object() : nlohmann::json::parse(run.extra);
  skipped_ = extra.value("skipped", std::int64_t{0});
  load_in_flight(reader, extra);
  load_refreshes(extra);
  load_spikes(extra);
  if (run.instruction_set != instruction_set())
    spdlog::warn("{} was written on {}, this is {}: the run continues, but not bit for bit", setup_.checkpoint,
                 run.instruction_set, instruction_set());
  spdlog::info("resumed from {} at step {}", setup_.checkpoint, step_);
  metrics_.rewind(step_, step_);
}

// Reads periods, staleness and who refreshes; there is nothing where the checkpoint is of a run with another
// optimizer.refresh.every, staleness or executor, which a fork may be.
void Trainer::load_refreshes(const nlohmann::json& extra) {
  const RefreshOptions& refresh = options_.optimizer.refresh;
  if (!refresh.automatic && !refresh.chooses_executor && !refresh.fits_staleness) return;
  const std::size_t matrices = matrix_count(tensor_specs(options_.model), options_.optimizer);
  const std::int64_t least = options_.optimizer.matrix->refresh_staleness + 1;
  if (const auto found = extra.find("refresh_periods"); refresh.automatic && found != extra.end()) {
    std::vector<std::int64_t> periods = found->get<std::vector<std::int64_t>>();
    const bool fits = periods.size() == matrices &&
                      std::all_of(periods.begin(), periods.end(), [&](std::int64_t p) { return p >= least; });
    if (fits) periods_.of = std::move(periods);
  }
  if (const auto found = extra.find("refresh_staleness"); refresh.fits_staleness && found != extra.end())
    if (const auto updates = found->get<std::int64_t>(); updates >= 1 && updates < least) lag_.updates = updates;
  if (const auto found = extra.find("refresh_executors"); refresh.chooses_executor && found != extra.end()) {
    std::vector<std::uint8_t> in_update = found->get<std::vector<std::uint8_t>>();
    if (in_update.size() == matrices) executors_.in_update = std::move(in_update);
  }
}

// Reads what an asynchronous pipeline had in flight, where it fits this pipeline.
void Trainer::load_in_flight(const CheckpointReader& reader, const nlohmann::json& extra) {
  executor_.start_at(step_);
  const bool was = extra.contains("pipeline");
  const std::optional<PipelineState> now = executor_.pipeline_state();
  if (now && was) {
    const PipelineState state = state_from(extra["pipeline"], *now);
    if (executor_.resume(step_, state)) return restore(executor_, reader, executor_.in_flight_fields(true), false);
  }
  if (was || now)
    spdlog::info("the pipeline starts empty at step {}{}", step_,
                 was ? ": what was in flight in the checkpoint belongs to another one" : "");
}

}  // namespace sestina
