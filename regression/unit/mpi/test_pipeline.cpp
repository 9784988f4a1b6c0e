// Stages on several ranks against the same stages, or the whole model, in one process.
#include <gtest/gtest.h>

#include <array>

#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

// Ranks: Pipeline 2 4
template <class Space>
class Pipeline : public testing::Test {};
TYPED_TEST_SUITE(Pipeline, reference::RunSpaces, reference::SpaceNames);

TYPED_TEST(Pipeline, SynchronousSchedulesGiveTheBitsOfOneStage) {
  for (const Family family : {Family::llama, Family::olmo2, Family::gpt, Family::qwen3_moe}) {
    const TrainingCase plain = pipeline_case("muon", family);
    const Trained whole = train_in_one_process<TypeParam>(plain, 4);
    for (const Kind kind : {Kind::one_f_one_b, Kind::gpipe, Kind::interleaved, Kind::zb_h1})
      for (const bool many : {false, true}) {
        const TrainingCase run = in_stages(plain, kind);
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
