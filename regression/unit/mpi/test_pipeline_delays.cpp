// What stages do about their delays, clipping and refreshes included, on several ranks against one process.
#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

// Ranks: PipelineDelays 2 4

constexpr std::pair<Correction, const char*> corrections[] = {
    {Correction::pipedream_lr, "soap"}, {Correction::nesterov, "adamw"},   {Correction::pipemare, "adamw"},
    {Correction::prediction, "muon"},   {Correction::prediction, "adamw"}, {Correction::dc_asgd, "adamw"}};

TEST(PipelineDelays, CorrectionsOfDelaysGiveTheBitsOfOneProcess) {
  for (const auto& [kind, optimizer] : corrections)
    for (const int micro_batch : {8, 4}) {
      const TrainingCase run = corrected_case(kind, optimizer, micro_batch);
      SCOPED_TRACE(fmt::format("{}, {}, micro-batches of {}", name(kind), optimizer, micro_batch));
      const Trained one = train_in_one_process(run, 7);
      expect_same(one, train_pipeline(world(), run, 7), "as in one process");
      expect_goes_on(one, {run, 4, 7}, "stopped and resumed");
      TrainingCase plain = run;
      plain.options.parallel.correction = {};
      plain.options.optimizer.adamw.momentum_decay.reset();
      EXPECT_NE(one.loss, train_in_one_process(plain, 7).loss);
    }
}

// Each stage on two data- or tensor-parallel ranks: gradients and weights are corrected where they are owned.
TEST(PipelineDelays, CorrectionsOfDelaysAreThoseOfRanksThatShareAStage) {
  if (world().size() != 4) return;
  const auto half = world().split(world().rank() / 2, world().rank());
  for (const auto& [kind, optimizer] : corrections)
    for (const bool tensor : {false, true}) {
      TrainingCase run = corrected_case(kind, optimizer, 4);
      (tensor ? run.options.parallel.tp : run.options.parallel.dp) = 2;
      expect_same(train_pipeline(*half, run, 6), train_pipeline(world(), run, 6),
                  fmt::format("{}, {}, {}", name(kind), optimizer, tensor ? "tp 2" : "dp 2"));
    }
}

// Scores are those of the minibatch's own forward passes, while those of later ones are under way; passes that come
// again after a restart leave the same ones.
TEST(PipelineDelays, ClippedScoresGiveTheBitsOfOneProcess) {
  for (const int micro_batch : {8, 4, 2}) {
    TrainingCase run = corrected_case(Correction::none, "muon", micro_batch);
    const Trained free = train_in_one_process(run, 7);
    run.options.optimizer.qk_clip = 0.01;
    SCOPED_TRACE(fmt::format("micro-batches of {}", micro_batch));
    const Trained one = train_in_one_process(run, 7);
    EXPECT_FALSE(free.weights == one.weights);
    expect_same(one, train_pipeline(world(), run, 7), "as in one process");
    for (const int stop : {2, 4}) expect_goes_on(one, {run, stop, 7}, "stopped and resumed");
  }
}

// Without delays the clip is that of a synchronous pipeline.
TEST(PipelineDelays, ClippedScoresOfDrainedPipelinesAreThoseOfSynchronousOnes) {
  TrainingCase run = corrected_case(Correction::none, "muon", 4);
  run.options.optimizer.qk_clip = 0.01;
  run.options.parallel.drain_every = 1;
  const Trained drained = train_in_one_process(run, 5);
  run.options.parallel.drain_every = 0;
  run.options.parallel.schedule = Kind::one_f_one_b;
  const Trained plain = train_in_one_process(run, 5);
  EXPECT_EQ(drained.loss, plain.loss);
  EXPECT_TRUE(drained.weights == plain.weights);
}

// PipeMare's warm-up is a synchronous pipeline, and its drains are those of drain_every = 1.
TEST(PipelineDelays, PipeMareWarmsUpSynchronously) {
  TrainingCase run = corrected_case(Correction::pipemare, "adamw", 4);
  run.options.parallel.correction.warmup = 6;
  const Trained warm = train_in_one_process(run, 6);
  expect_same(warm, train_pipeline(world(), run, 6), "warm-up");
  TrainingCase synchronous = run;
  synchronous.options.parallel.schedule = Kind::one_f_one_b;
  synchronous.options.parallel.correction = {};
  const Trained plain = train_in_one_process(synchronous, 6);  // (norms are summed tensor by tensor)
  EXPECT_EQ(warm.loss, plain.loss);
  EXPECT_TRUE(warm.weights == plain.weights);
  run.options.parallel.correction.warmup = 3;
  const Trained one = train_in_one_process(run, 8);
  expect_same(one, train_pipeline(world(), run, 8), "warm-up and after it");
  for (const int stop : {2, 3, 5}) expect_goes_on(one, {run, stop, 8}, fmt::format("stop {}", stop));
  EXPECT_NE(one.loss, train_in_one_process(synchronous, 8).loss);
}

TEST(PipelineDelays, ClipScopesGiveTheBitsOfOneProcess) {
  using Scope = ParallelOptions::ClipScope;
  for (const char* kind : {"adamw", "muon"})
    for (const Scope scope : {Scope::group, Scope::global_lagged}) {
      TrainingCase run = corrected_case(Correction::none, kind, 4);
      run.options.train.clip_norm = 0.3;
      const Trained by_stage = train_in_one_process(run, 9);
      run.options.parallel.clip_scope = scope;
      const Trained one = train_in_one_process(run, 9);
      EXPECT_FALSE(by_stage.weights == one.weights);
      const std::string what = fmt::format("{}, scope {}", kind, static_cast<int>(scope));
      expect_same(one, train_pipeline(world(), run, 9), what);
      for (const int stop : {2, 6}) expect_goes_on(one, {run, stop, 9}, what + ", resumed");
    }
}

// Groups of synchronous stages are clipped in the same way; with all of a stage in one group it is clipped as a stage.
TEST(PipelineDelays, SynchronousStagesClipByGroup) {
  TrainingCase run = pipeline_case("muon");
  run.options.train.clip_norm = 0.3;
  run.options.parallel.pp = world().size();
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::group;
  const Trained one = train_in_one_process(run, 4);
  expect_same(one, train_pipeline(world(), run, 4), "by group");
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::stage;
  EXPECT_FALSE(one.weights == train_in_one_process(run, 4).weights);
  run.options.train.clip_norm = 1e9;  // limits nothing
  const Trained unlimited = train_in_one_process(run, 4);
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::group;
  expect_same(unlimited, train_in_one_process(run, 4), "without a limit");
}

// Refreshes more often where gradients are older.
TEST(PipelineDelays, StagesRefreshAtTheirOwnPace) {
  using Budget = RefreshOptions::Budget;
  for (const char* kind : {"soap", "basis-rotation", "shampoo"}) {
    TrainingCase run = corrected_case(Correction::none, kind, 8);
    const Trained uniform = train_in_one_process(run, 9);
    run.options.optimizer.refresh.budget = Budget::stage_aware;
    const Trained one = train_in_one_process(run, 9);
    EXPECT_FALSE(uniform.weights == one.weights) << kind;
    expect_same(one, train_pipeline(world(), run, 9), kind);
    expect_goes_on(one, {run, 4, 9}, kind);
    run.options.optimizer.refresh.budget = Budget::reversed;
    EXPECT_FALSE(one.weights == train_in_one_process(run, 9).weights) << kind;
    run.options.optimizer.refresh.budget_power = 0;
    expect_same(uniform, train_in_one_process(run, 9), kind);
  }
}

// An update that is withheld is a version like any other: the weights as they were, for passes that began under them.
TEST(PipelineDelays, AWithheldUpdateKeepsItsVersion) {
  const TrainingCase run = corrected_case(Correction::none, "adamw", 8);
  LoneRun lone(run, 5);
  auto& executor = lone.executor;
  executor.run(0).withhold();
  SavedState state;
  save(executor, executor.model_fields(), state);
  save(executor, executor.in_flight_fields(false), state);
  const std::string name = "model.embed_tokens.weight";
  EXPECT_EQ(state.at("/run/pipeline/version_1/" + name), state.at("/model/" + name));
  EXPECT_NE(state.at("/run/pipeline/version_2/" + name), state.at("/model/" + name));
}

}  // namespace
}  // namespace sestina
