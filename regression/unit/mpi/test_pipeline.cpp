// Stages on several ranks against the same stages, or the whole model, in one process.
#include <gtest/gtest.h>

#include <array>

#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

using Kind = ParallelOptions::Schedule;
using Stash = ParallelOptions::Stash;

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

template <class Exec>
Trained train_pipeline(Communicator& ranks, const TrainingCase& run, int steps) {
  Executor<Exec, float> executor(Exec(), run.options, ranks);
  executor.initialise(5);
  executor.weights_changed();
  executor.start_at(0);
  Trained result;
  if (run.options.parallel.is_async()) {
    SettlingDriver driver(run.options, executor.share(), 0, result);
    for (int t = 1; t <= steps; ++t) executor.step(t, driver);
    executor.settle(driver);
    executor.finish_gather();
  } else {
    train_steps(executor, run.options, 0, steps, result);
  }
  result.weights = whole_weights(executor);
  return result;
}

template <class Exec>
Trained train_in_one_process(const TrainingCase& run, int steps) {
  const auto alone = make_lone_communicator();
  return train_pipeline<Exec>(*alone, run, steps);
}

void expect_same(const Trained& one, const Trained& other, const std::string& what) {
  EXPECT_EQ(one.loss, other.loss) << what;
  EXPECT_EQ(one.norm, other.norm) << what;
  EXPECT_TRUE(one.weights == other.weights) << what;
}

// Ranks: Pipeline 2 4
template <class Space>
class Pipeline : public testing::Test {};
TYPED_TEST_SUITE(Pipeline, reference::RunSpaces, reference::SpaceNames);

TYPED_TEST(Pipeline, SynchronousSchedulesGiveTheBitsOfOneStage) {
  for (const Family family : {Family::llama, Family::olmo2, Family::gpt}) {
    const TrainingCase plain = pipeline_case("muon", family);
    const Trained whole = train_in_one_process<TypeParam>(plain, 4);
    for (const Kind kind : {Kind::one_f_one_b, Kind::gpipe, Kind::interleaved, Kind::zb_h1})
      for (const bool many : {false, true}) {
        TrainingCase run = plain;
        run.options.parallel.pp = kind == Kind::interleaved ? 4 : world().size();
        run.options.parallel.schedule = kind;
        if (kind == Kind::interleaved) run.options.parallel.placement = ParallelOptions::Placement::round_robin;
        const Trained staged =
            many ? train_pipeline<TypeParam>(world(), run, 4) : train_in_one_process<TypeParam>(run, 4);
        expect_same(whole, staged,
                    fmt::format("schedule {}, {} ranks", static_cast<int>(kind), many ? world().size() : 1));
      }
  }
}

// Two stages of data- or tensor-parallel ranks: as those ranks without stages.
TYPED_TEST(Pipeline, StagesOfSeveralRanksGiveTheBitsOfTheSameRanksWithoutStages) {
  if (world().size() != 4) return;
  const auto half = world().split(world().rank() / 2, world().rank());
  for (const char* kind : {"soap", "adamw"})
    for (const bool tensor : {false, true})
      for (const Kind schedule : {Kind::one_f_one_b, Kind::zb_h1}) {
        TrainingCase run = pipeline_case(kind);
        (tensor ? run.options.parallel.tp : run.options.parallel.dp) = 2;
        const Trained flat = train_pipeline<TypeParam>(*half, run, 4);
        run.options.parallel.pp = 2;
        run.options.parallel.schedule = schedule;
        expect_same(flat, train_pipeline<TypeParam>(world(), run, 4),
                    fmt::format("{}, {}", kind, tensor ? "tp 2" : "dp 2"));
      }
}

TYPED_TEST(Pipeline, AsynchronousStagesGiveTheBitsOfOneProcess) {
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
        expect_same(train_in_one_process<TypeParam>(run, 7), train_pipeline<TypeParam>(world(), run, 7),
                    fmt::format("{}, stash {}, micro-batches of {}", kind, static_cast<int>(stash), micro_batch));
      }
}

TYPED_TEST(Pipeline, WithoutDelayAnAsynchronousPipelineIsASynchronousOne) {
  TrainingCase run = pipeline_case("muon");
  run.options.parallel.pp = world().size();
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::stage;
  const Trained synchronous = train_pipeline<TypeParam>(world(), run, 5);
  run.options.parallel.schedule = Kind::async_1f1b;
  run.options.parallel.delay_scale = 0;
  const Trained none = train_pipeline<TypeParam>(world(), run, 5);
  EXPECT_EQ(synchronous.loss, none.loss);
  EXPECT_TRUE(synchronous.weights == none.weights);
  run.options.parallel.delay_scale = 1;
  EXPECT_NE(train_pipeline<TypeParam>(world(), run, 5).loss, none.loss);  // a delay shows
}

}  // namespace
}  // namespace sestina
