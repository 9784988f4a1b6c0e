// Runs of pipelines for tests: on all ranks, in one process, stopped and resumed.
#pragma once
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {

using Kind = ParallelOptions::Schedule;
using Stash = ParallelOptions::Stash;
using Correction = ParallelOptions::DelayCorrection;

inline TrainingCase pipeline_case(const std::string& kind, Family family = Family::llama) {
  TrainingCase run = training_case(kind, family);
  run.options.model.num_hidden_layers = 4;
  run.options.model.tie_word_embeddings = false;
  run.options.train.global_batch = 8;
  return run;
}

// In as many stages as the schedule takes on these ranks.
inline TrainingCase in_stages(TrainingCase run, Kind schedule) {
  ParallelOptions& parallel = run.options.parallel;
  parallel.pp = schedule == Kind::interleaved ? 4 : world().size();
  parallel.schedule = schedule;
  if (schedule == Kind::interleaved) parallel.placement = ParallelOptions::Placement::round_robin;
  return run;
}

// What the ranks know of steps that are finished.
inline void add_finished(const Options& options, std::span<const FinishedStep> steps, Trained& result) {
  const double scale = 1.0 / (static_cast<double>(options.train.global_batch) * options.data.sequence_length);
  for (const FinishedStep& step : steps) {
    result.loss.push_back(step.sums.loss * scale);
    result.norm.push_back(step.sums.norm);
  }
}

// Updates number begin + 1 to end, all of them finished.
inline void train_finished(Executor& executor, const Options& options, Batches& batches, int begin, int end,
                           Trained& result) {
  for (int t = begin + 1; t <= end; ++t) add_finished(options, take_step(executor, t, batches), result);
  add_finished(options, executor.finish_steps(), result);
}

// One rank by itself, after so many updates.
struct LoneRun {
  std::unique_ptr<Communicator> alone = make_lone_communicator();
  TypedExecutor<Host, float> executor;
  SampleBatches batches;
  LoneRun(const TrainingCase& run, int steps)
      : executor(Host(), make_plan({run.options, 1}), *alone), batches(run.options, executor.share(), 0) {
    executor.initialise(5);
    executor.weights_changed();
    executor.start_at(0);
    for (int t = 1; t <= steps; ++t) take_step(executor, t, batches);
  }
};

// drain_at: updates after which the pipeline is emptied, 0: none.
template <class Exec = Host>
Trained train_pipeline(Communicator& ranks, const TrainingCase& run, int steps, int drain_at = 0) {
  TypedExecutor<Exec, float> executor(Exec(), make_plan({run.options, ranks.size()}), ranks);
  executor.initialise(5);
  executor.weights_changed();
  executor.start_at(0);
  Trained result;
  if (drain_at > 0) {
    SampleBatches before(run.options, executor.share(), 0), rest(run.options, executor.share(), drain_at);
    train_finished(executor, run.options, before, 0, drain_at, result);
    executor.drain(drain_at);
    train_finished(executor, run.options, rest, drain_at, steps, result);
    executor.finish_gather();
  } else if (run.options.parallel.is_async()) {
    SampleBatches batches(run.options, executor.share(), 0);
    train_finished(executor, run.options, batches, 0, steps, result);
    executor.finish_gather();
  } else {
    train_steps(executor, run.options, 0, steps, result);
  }
  result.weights = whole_weights(executor);
  return result;
}

template <class Exec = Host>
Trained train_in_one_process(const TrainingCase& run, int steps) {
  return train_once([&] { return train_pipeline<Exec>(*make_lone_communicator(), run, steps); });
}

using SavedState = std::map<std::string, std::vector<std::byte>>;

inline void save(TypedExecutor<Host, float>& run, const std::vector<StateField>& fields, SavedState& state) {
  for (const StateField& field : fields) {
    std::vector<std::byte>& bytes = state[field.path];
    bytes.resize(field.bytes());
    copy_to_host(run.exec(), field, bytes.data());
  }
}
inline void restore(TypedExecutor<Host, float>& run, const std::vector<StateField>& fields, const SavedState& state) {
  for (const StateField& field : fields) {
    ASSERT_TRUE(state.contains(field.path)) << field.path;
    ASSERT_EQ(state.at(field.path).size(), field.bytes()) << field.path;
    copy_from_host(run.exec(), field, state.at(field.path).data());
  }
}

// A run that stops after so many updates, drained or not, and goes on.
struct Stopped {
  const TrainingCase& run;
  int stop, steps;
  bool drains = false;
};

// On this rank alone: the updates to the stop, and the rest in another executor, from state alone.
inline Trained stop_and_resume(const Stopped& stopped) {
  const auto& [run, stop, steps, drains] = stopped;
  const auto alone = make_lone_communicator();
  Trained result;
  SavedState saved;
  PipelineState pipeline;
  {
    TypedExecutor<Host, float> first(Host(), make_plan({run.options, alone->size()}), *alone);
    first.initialise(5);
    first.weights_changed();
    first.start_at(0);
    SampleBatches batches(run.options, first.share(), 0);
    train_finished(first, run.options, batches, 0, stop, result);
    if (drains) first.drain(stop);
    save(first, first.fields(), saved);
    save(first, first.in_flight_fields(false), saved);
    pipeline = first.pipeline_state().value();
  }
  TypedExecutor<Host, float> second(Host(), make_plan({run.options, alone->size()}), *alone);
  second.initialise(6);
  restore(second, second.fields(), saved);
  EXPECT_TRUE(second.resume(stop, pipeline));
  restore(second, second.in_flight_fields(true), saved);
  second.weights_changed();
  SampleBatches batches(run.options, second.share(), stop);
  train_finished(second, run.options, batches, stop, steps, result);
  result.weights = whole_weights(second);
  return result;
}

inline void expect_same(const Trained& one, const Trained& other, const std::string& what) {
  EXPECT_EQ(one.loss, other.loss) << what;
  EXPECT_EQ(one.norm, other.norm) << what;
  EXPECT_TRUE(one.weights == other.weights) << what;
}

// One process runs it: the first of two ranks does so once for every number of ranks.
inline void expect_goes_on(const Trained& one, const Stopped& stopped, const std::string& what) {
  if (world().size() == 2) expect_same(one, train_once([&] { return stop_and_resume(stopped); }), what);
}

// Four stages with a delay that is corrected for; one or two micro-batches of an update.
inline TrainingCase corrected_case(Correction kind, const char* optimizer, int micro_batch) {
  TrainingCase run = pipeline_case(optimizer);
  run.options.train.micro_batch = micro_batch;
  ParallelOptions& parallel = run.options.parallel;
  parallel.pp = 4;
  parallel.schedule = Kind::async_1f1b;
  parallel.clip_scope = ParallelOptions::ClipScope::stage;
  parallel.stash = kind == Correction::pipemare ? Stash::saved : Stash::on;
  parallel.correction = {.kind = kind, .steps = 20, .decay = 0.3, .lambda = 1e4};
  if (kind == Correction::nesterov) run.options.optimizer.adamw.momentum_decay = 1.0;
  return run;
}

}  // namespace sestina
