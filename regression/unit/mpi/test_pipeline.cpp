// Stages on several ranks against the same stages, or the whole model, in one process.
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

using Kind = ParallelOptions::Schedule;
using Stash = ParallelOptions::Stash;
using Correction = ParallelOptions::DelayCorrection;

TrainingCase pipeline_case(const std::string& kind, Family family = Family::llama) {
  TrainingCase run = training_case(kind, family);
  run.options.model.num_hidden_layers = 4;
  run.options.model.tie_word_embeddings = false;
  run.options.train.global_batch = 8;
  return run;
}

// Steps and what the ranks know of them when they are settled.
class SettlingDriver final : public StepDriver {
 public:
  SettlingDriver(const Options& options, const BatchShare& share, int begin, Trained& result)
      : samples_(options, share, begin),
        scale_(1.0 / (static_cast<double>(options.train.global_batch) * options.data.sequence_length)),
        result_(result) {}
  BatchView next_batch() override { return samples_.next_batch(); }
  double factor(std::int64_t) override { return 1; }
  void settled(std::int64_t, const StepSums& sums, const double*, std::size_t) override {
    result_.loss.push_back(sums.loss * scale_);
    result_.norm.push_back(sums.norm);
  }

 private:
  SampleDriver samples_;
  double scale_;
  Trained& result_;
};

// The weights of all stages, from the ranks that have them, in the order of the stages.
std::vector<float> pipeline_weights(Executor<Host, float>& run) {
  std::vector<float> all;
  for (const StagePlan& stage : run.plan().stages)
    for (const TensorSpec& spec : stage.specs) {
      std::vector<double> values(static_cast<std::size_t>(spec.elements()), -1e300);
      for (std::size_t i = 0; i < run.stage_count(); ++i) {
        const Arena<Host, float>& arena = run.stage(i).arena();
        for (std::size_t k = 0; k < arena.size(); ++k) {
          const TensorHolding& held = arena.layout().tensors[k];
          if (held.whole.name != spec.name) continue;
          for (std::int64_t r = 0; r < held.local.rows; ++r)
            for (std::int64_t c = 0; c < held.local.cols; ++c) {
              const auto from = static_cast<std::size_t>(r * held.local.cols + c);
              const auto to = static_cast<std::size_t>((held.row_begin + r) * spec.cols + held.col_begin + c);
              values[to] = spec.is_vector() ? arena.vector(k)[from] : arena.matrix(k)[from];
            }
        }
      }
      run.grid().tp_group->all_reduce(values.data(), values.size(), Reduction::max);
      run.pipeline().all_reduce(values.data(), values.size(), Reduction::max);
      all.insert(all.end(), values.begin(), values.end());
    }
  return all;
}

// drain_at: updates after which the pipeline is emptied, 0: none.
Trained train_pipeline(Communicator& ranks, const TrainingCase& run, int steps, int drain_at = 0) {
  Executor<Host, float> executor(Host(), run.options, ranks);
  executor.initialise(5);
  executor.weights_changed();
  executor.start_at(0);
  Trained result;
  if (drain_at > 0) {
    SettlingDriver before(run.options, executor.share(), 0, result),
        behind(run.options, executor.share(), drain_at, result);
    for (int t = 1; t <= drain_at; ++t) executor.step(t, before);
    executor.settle(before);
    executor.drain(drain_at);
    for (int t = drain_at + 1; t <= steps; ++t) executor.step(t, behind);
    executor.settle(behind);
    executor.finish_gather();
  } else if (run.options.parallel.is_async()) {
    SettlingDriver driver(run.options, executor.share(), 0, result);
    for (int t = 1; t <= steps; ++t) executor.step(t, driver);
    executor.settle(driver);
    executor.finish_gather();
  } else {
    train_steps(executor, run.options, 0, steps, result);
  }
  result.weights = pipeline_weights(executor);
  return result;
}

Trained train_in_one_process(const TrainingCase& run, int steps) {
  const auto alone = make_lone_communicator();
  return train_pipeline(*alone, run, steps);
}

using SavedState = std::map<std::string, std::vector<std::byte>>;

void save(Executor<Host, float>& run, const std::vector<StateField>& fields, SavedState& state) {
  for (const StateField& field : fields) {
    std::vector<std::byte>& bytes = state[field.path];
    bytes.resize(field.bytes());
    copy_to_host(run.exec(), field, bytes.data());
  }
}
void restore(Executor<Host, float>& run, const std::vector<StateField>& fields, const SavedState& state) {
  for (const StateField& field : fields) {
    ASSERT_TRUE(state.contains(field.path)) << field.path;
    ASSERT_EQ(state.at(field.path).size(), field.bytes()) << field.path;
    copy_from_host(run.exec(), field, state.at(field.path).data());
  }
}

// In one process: so many updates, and the rest in another executor, from state alone.
Trained stopped_and_resumed(const TrainingCase& run, int stop, int steps, bool drains = false) {
  const auto alone = make_lone_communicator();
  Trained result;
  SavedState saved;
  PipelineState pipeline;
  {
    Executor<Host, float> first(Host(), run.options, *alone);
    first.initialise(5);
    first.weights_changed();
    first.start_at(0);
    SettlingDriver driver(run.options, first.share(), 0, result);
    for (int t = 1; t <= stop; ++t) first.step(t, driver);
    first.settle(driver);
    if (drains) first.drain(stop);
    save(first, first.fields(), saved);
    save(first, first.in_flight_fields(false), saved);
    pipeline = first.pipeline_state();
  }
  Executor<Host, float> second(Host(), run.options, *alone);
  second.initialise(6);
  restore(second, second.fields(), saved);
  EXPECT_TRUE(second.resume(stop, pipeline));
  restore(second, second.in_flight_fields(true), saved);
  second.weights_changed();
  SettlingDriver driver(run.options, second.share(), stop, result);
  for (int t = stop + 1; t <= steps; ++t) second.step(t, driver);
  second.settle(driver);
  result.weights = pipeline_weights(second);
  return result;
}

void expect_same(const Trained& one, const Trained& other, const std::string& what) {
  EXPECT_EQ(one.loss, other.loss) << what;
  EXPECT_EQ(one.norm, other.norm) << what;
  EXPECT_TRUE(one.weights == other.weights) << what;
}

// Ranks: Pipeline 2 4

TEST(Pipeline, SynchronousSchedulesGiveTheBitsOfOneStage) {
  for (const Family family : {Family::llama, Family::olmo2, Family::gpt}) {
    const TrainingCase plain = pipeline_case("muon", family);
    const Trained whole = train_in_one_process(plain, 4);
    for (const Kind kind : {Kind::one_f_one_b, Kind::gpipe, Kind::interleaved, Kind::zb_h1})
      for (const bool many : {false, true}) {
        TrainingCase run = plain;
        run.options.parallel.pp = kind == Kind::interleaved ? 4 : world().size();
        run.options.parallel.schedule = kind;
        if (kind == Kind::interleaved) run.options.parallel.placement = ParallelOptions::Placement::round_robin;
        const Trained staged = many ? train_pipeline(world(), run, 4) : train_in_one_process(run, 4);
        expect_same(whole, staged,
                    fmt::format("schedule {}, {} ranks", static_cast<int>(kind), many ? world().size() : 1));
      }
  }
}

// Two stages of data- or tensor-parallel ranks: as those ranks without stages.
TEST(Pipeline, StagesOfSeveralRanksGiveTheBitsOfTheSameRanksWithoutStages) {
  if (world().size() != 4) return;
  const auto half = world().split(world().rank() / 2, world().rank());
  for (const char* kind : {"soap", "adamw"})
    for (const bool tensor : {false, true})
      for (const Kind schedule : {Kind::one_f_one_b, Kind::zb_h1}) {
        TrainingCase run = pipeline_case(kind);
        (tensor ? run.options.parallel.tp : run.options.parallel.dp) = 2;
        const Trained flat = train_pipeline(*half, run, 4);
        run.options.parallel.pp = 2;
        run.options.parallel.schedule = schedule;
        expect_same(flat, train_pipeline(world(), run, 4), fmt::format("{}, {}", kind, tensor ? "tp 2" : "dp 2"));
      }
}

TEST(Pipeline, AsynchronousStagesGiveTheBitsOfOneProcess) {
  for (const char* kind : {"adamw", "muon", "soap", "basis-rotation"})
    for (const Stash stash : {Stash::on, Stash::recompute, Stash::saved})
      for (const int micro_batch : {8, 4}) {  // one and two micro-batches of an update
        TrainingCase run = pipeline_case(kind);
        run.options.train.micro_batch = micro_batch;
        run.options.parallel.pp = 4;
        run.options.parallel.schedule = Kind::async_1f1b;
        run.options.parallel.clip_scope = ParallelOptions::ClipScope::stage;
        run.options.parallel.stash = stash;
        run.options.parallel.drain_every = stash == Stash::saved ? 4 : 0;
        expect_same(train_in_one_process(run, 7), train_pipeline(world(), run, 7),
                    fmt::format("{}, stash {}, micro-batches of {}", kind, static_cast<int>(stash), micro_batch));
      }
}

// Four stages with a delay that is corrected for; one or two micro-batches of an update.
TrainingCase corrected_case(Correction kind, const char* optimizer, int micro_batch) {
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

constexpr std::pair<Correction, const char*> corrections[] = {
    {Correction::pipedream_lr, "soap"}, {Correction::nesterov, "adamw"},   {Correction::pipemare, "adamw"},
    {Correction::prediction, "muon"},   {Correction::prediction, "adamw"}, {Correction::dc_asgd, "adamw"}};

TEST(Pipeline, CorrectionsOfDelaysGiveTheBitsOfOneProcess) {
  for (const auto& [kind, optimizer] : corrections)
    for (const int micro_batch : {8, 4}) {
      const TrainingCase run = corrected_case(kind, optimizer, micro_batch);
      SCOPED_TRACE(fmt::format("{}, {}, micro-batches of {}", name(kind), optimizer, micro_batch));
      const Trained one = train_in_one_process(run, 7);
      expect_same(one, train_pipeline(world(), run, 7), "as in one process");
      expect_same(one, stopped_and_resumed(run, 4, 7), "stopped and resumed");
      TrainingCase plain = run;
      plain.options.parallel.correction = {};
      plain.options.optimizer.adamw.momentum_decay.reset();
      EXPECT_NE(one.loss, train_in_one_process(plain, 7).loss);
    }
}

// Each stage on two data- or tensor-parallel ranks: gradients and weights are corrected where they are owned.
TEST(Pipeline, CorrectionsOfDelaysAreThoseOfRanksThatShareAStage) {
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

// PipeMare's warm-up is a synchronous pipeline, and its drains are those of drain_every = 1.
TEST(Pipeline, PipeMareWarmsUpSynchronously) {
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
  for (const int stop : {2, 3, 5}) expect_same(one, stopped_and_resumed(run, stop, 8), fmt::format("stop {}", stop));
  EXPECT_NE(one.loss, train_in_one_process(synchronous, 8).loss);
}

TEST(Pipeline, ClipScopesGiveTheBitsOfOneProcess) {
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
      for (const int stop : {2, 6}) expect_same(one, stopped_and_resumed(run, stop, 9), what + ", resumed");
    }
}

// Groups of synchronous stages are clipped alike; with all of a stage in one group it is clipped as a stage.
TEST(Pipeline, SynchronousStagesClipByGroup) {
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
TEST(Pipeline, StagesRefreshAtTheirOwnPace) {
  using Budget = RefreshOptions::Budget;
  for (const char* kind : {"soap", "basis-rotation", "shampoo"}) {
    TrainingCase run = corrected_case(Correction::none, kind, 8);
    const Trained uniform = train_in_one_process(run, 9);
    run.options.optimizer.refresh.budget = Budget::stage_aware;
    const Trained one = train_in_one_process(run, 9);
    EXPECT_FALSE(uniform.weights == one.weights) << kind;
    expect_same(one, train_pipeline(world(), run, 9), kind);
    expect_same(one, stopped_and_resumed(run, 4, 9), kind);
    run.options.optimizer.refresh.budget = Budget::reversed;
    EXPECT_FALSE(one.weights == train_in_one_process(run, 9).weights) << kind;
    run.options.optimizer.refresh.budget_power = 0;
    expect_same(uniform, train_in_one_process(run, 9), kind);
  }
}

// Wherever stages are cut, synchronous ones give the same bits; asynchronous ones have their delays at other layers.
TEST(Pipeline, StagesAreCutByHand) {
  TrainingCase run = pipeline_case("muon");
  const Trained whole = train_in_one_process(run, 3);
  run.options.parallel.pp = 2;
  run.options.parallel.stage_layers = {3, 1};
  const auto two = world().split(world().rank() / 2, world().rank());
  expect_same(whole, train_pipeline(*two, run, 3), "synchronous");
  run.options.parallel.schedule = Kind::async_1f1b;
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::stage;
  const Trained one = train_in_one_process(run, 6);
  expect_same(one, train_pipeline(*two, run, 6), "asynchronous");
  expect_same(one, stopped_and_resumed(run, 3, 6), "stopped and resumed");
  TrainingCase even = run;
  even.options.parallel.stage_layers.clear();
  EXPECT_FALSE(one.weights == train_in_one_process(even, 6).weights);
  const auto alone = make_lone_communicator();  // what is in flight belongs to one cut
  Executor<Host, float> by_hand(Host(), run.options, *alone), in_halves(Host(), even.options, *alone);
  EXPECT_EQ(by_hand.stage(0).range().end, 3);
  EXPECT_FALSE(in_halves.resume(3, by_hand.pipeline_state()));
}

TrainingCase tied(TrainingCase run) {
  run.options.model.tie_word_embeddings = true;
  return run;
}

// The first stage owns the matrix, the last one multiplies by it: to the bits of one rank.
TEST(Pipeline, TiedEmbeddingsGiveTheBitsOfOneStage) {
  for (const Family family : {Family::llama, Family::gpt})
    for (const int micro_batch : {1, 8}) {  // several leaves of the tree of gradients, and one
      TrainingCase plain = tied(pipeline_case("muon", family));
      plain.options.train.micro_batch = micro_batch;
      const Trained whole = train_in_one_process(plain, 4);
      for (const Kind kind : {Kind::one_f_one_b, Kind::gpipe, Kind::interleaved, Kind::zb_h1})
        for (const bool many : {false, true}) {
          TrainingCase run = plain;
          run.options.parallel.pp = kind == Kind::interleaved ? 4 : world().size();
          run.options.parallel.schedule = kind;
          if (kind == Kind::interleaved) run.options.parallel.placement = ParallelOptions::Placement::round_robin;
          expect_same(whole, many ? train_pipeline(world(), run, 4) : train_in_one_process(run, 4),
                      fmt::format("schedule {}, {} ranks, micro-batches of {}", static_cast<int>(kind),
                                  many ? world().size() : 1, micro_batch));
        }
    }
}

TEST(Pipeline, TiedEmbeddingsOfStagesOfSeveralRanks) {
  if (world().size() != 4) return;
  const auto half = world().split(world().rank() / 2, world().rank());
  for (const bool tensor : {false, true})
    for (const Kind schedule : {Kind::one_f_one_b, Kind::zb_h1}) {
      TrainingCase run = tied(pipeline_case("adamw"));
      (tensor ? run.options.parallel.tp : run.options.parallel.dp) = 2;
      const Trained flat = train_pipeline(*half, run, 4);
      run.options.parallel.pp = 2;
      run.options.parallel.schedule = schedule;
      expect_same(flat, train_pipeline(world(), run, 4), tensor ? "tp 2" : "dp 2");
    }
}

TEST(Pipeline, TiedEmbeddingsOfAsynchronousStages) {
  for (const Correction kind : {Correction::none, Correction::prediction, Correction::dc_asgd})
    for (const int micro_batch : {8, 4}) {
      TrainingCase run = tied(corrected_case(kind, "adamw", micro_batch));
      run.options.parallel.drain_every = micro_batch == 4 ? 5 : 0;
      const Trained one = train_in_one_process(run, 8);
      expect_same(one, train_pipeline(world(), run, 8), fmt::format("{}, {}", name(kind), micro_batch));
      expect_same(one, stopped_and_resumed(run, 4, 8), "stopped and resumed");
    }
}

// Emptied at a save: as by parallel.drain_every, on any number of ranks, and as from the checkpoint.
TEST(Pipeline, ASaveCanEmptyIt) {
  for (const auto& [kind, optimizer] : {std::pair(Correction::none, "muon"), std::pair(Correction::prediction, "adamw"),
                                        std::pair(Correction::pipemare, "adamw")})
    for (const Stash stash : {Stash::on, Stash::recompute, Stash::saved})
      for (const int micro_batch : {8, 4}) {
        TrainingCase run = corrected_case(kind, optimizer, micro_batch);
        if (kind == Correction::none)
          run.options.parallel.stash = stash;
        else if (stash != Stash::on)
          continue;
        run.options.model.tie_word_embeddings = run.options.parallel.stash == Stash::on;
        SCOPED_TRACE(
            fmt::format("{}, stash {}, micro-batches of {}", name(kind), static_cast<int>(stash), micro_batch));
        const auto alone = make_lone_communicator();
        const Trained one = train_pipeline(*alone, run, 8, 4);
        EXPECT_FALSE(one.weights == train_in_one_process(run, 8).weights);
        expect_same(one, train_pipeline(world(), run, 8, 4), "on many ranks");
        expect_same(one, stopped_and_resumed(run, 4, 8, true), "stopped and resumed");
        run.options.parallel.drain_every = 4;
        expect_same(one, train_in_one_process(run, 8), "as drain_every");
      }
}

// What an evaluation multiplies by is the newest matrix: the losses of a run without stages.
TEST(Pipeline, TiedEmbeddingsAreEvaluatedAsTheyAre) {
  const auto losses = [](Communicator& ranks, const TrainingCase& run) {
    Executor<Host, float> executor(Host(), run.options, ranks);
    executor.initialise(5);
    executor.weights_changed();
    SampleDriver driver(run.options, executor.share(), 0);
    const std::vector<std::int32_t> tokens = sample_tokens(run.options, 3);
    std::vector<double> all;
    for (int t = 1; t <= 3; ++t) {
      for (int batch = 0; batch < 2; ++batch) {  // the second one needs no message
        double loss = executor.loss({tokens.data(), nullptr});
        executor.pipeline().all_reduce(&loss, 1, Reduction::sum);
        all.push_back(loss);
      }
      executor.step(t, driver);
    }
    return all;
  };
  TrainingCase run = tied(pipeline_case("adamw"));
  const auto alone = make_lone_communicator();
  const std::vector<double> whole = losses(*alone, run);
  EXPECT_NE(whole[0], whole[2]);
  run.options.parallel.pp = world().size();
  EXPECT_EQ(whole, losses(world(), run));
}

// An update that is withheld is a version like any other: the weights as they were, for passes that began under them.
TEST(Pipeline, AWithheldUpdateKeepsItsVersion) {
  const TrainingCase run = corrected_case(Correction::none, "adamw", 8);
  const auto alone = make_lone_communicator();
  Executor<Host, float> executor(Host(), run.options, *alone);
  executor.initialise(5);
  executor.weights_changed();
  executor.start_at(0);
  SampleDriver driver(run.options, executor.share(), 0);
  for (int t = 1; t <= 5; ++t) executor.step(t, driver);
  executor.run(0).withhold();
  SavedState state;
  save(executor, executor.model_fields(), state);
  save(executor, executor.in_flight_fields(false), state);
  const std::string name = "model.embed_tokens.weight";
  EXPECT_EQ(state.at("/run/pipeline/version_1/" + name), state.at("/model/" + name));
  EXPECT_NE(state.at("/run/pipeline/version_2/" + name), state.at("/model/" + name));
}

TEST(Pipeline, WithoutDelayAnAsynchronousPipelineIsASynchronousOne) {
  TrainingCase run = pipeline_case("muon");
  run.options.parallel.pp = world().size();
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::stage;
  const Trained synchronous = train_pipeline(world(), run, 5);
  run.options.parallel.schedule = Kind::async_1f1b;
  run.options.parallel.delay_scale = 0;
  const Trained none = train_pipeline(world(), run, 5);
  EXPECT_EQ(synchronous.loss, none.loss);
  EXPECT_TRUE(synchronous.weights == none.weights);
  run.options.parallel.delay_scale = 1;
  EXPECT_NE(train_pipeline(world(), run, 5).loss, none.loss);  // a delay shows
}

}  // namespace
}  // namespace sestina
