// What a training run in an asynchronous pipeline writes of its delays, and that it allocates nothing for it.
#include <gtest/gtest.h>

#include "regression/unit/step/optimizer_run.hpp"

namespace sestina {
namespace {

constexpr const char* stages = "[parallel]\npp = 2\nschedule = \"async-1f1b\"\ndelay_scale = 4\n";

class PipelineMetrics : public OptimizerRun {};

// Two micro-batches an update: the first of two stages is two updates late. metrics.every is 2.
TEST_P(PipelineMetrics, TellStalenessAndDriftByStage) {
  TrainSetup run = setup(6, "late", "fp32", stages);
  run.options.metrics.tensors_every = 2;
  run.planned = plan_that_fits(run.options);
  train(run, Host());
  const RunHistory history = read_history(run.run_dir);
  EXPECT_EQ(history.more.at("staleness"), (std::vector<double>{0, 1, 2, 2, 2, 2}));
  ASSERT_EQ(history.stages.size(), 3u);
  for (const auto& line : history.stages) {
    EXPECT_EQ(line.step % 2, 0);
    EXPECT_EQ(line.staleness, (std::vector<double>{line.step == 2 ? 1.0 : 2.0, 0}));
    EXPECT_GT(line.drift.at(0), 0);
    EXPECT_LT(line.drift[0], 1);
    EXPECT_EQ(line.drift.at(1), 0);
    ASSERT_EQ(line.cosine.size(), 2u);
    for (const double cosine : line.cosine) EXPECT_TRUE(cosine > -1 && cosine < 1 + 1e-6) << cosine;
    EXPECT_LT(line.cosine[0], 1 - 1e-6);
  }
  const TrainSetup plain = setup(2, "plain", "fp32", "[parallel]\npp = 2\n");
  train(plain, Host());
  EXPECT_FALSE(read_history(plain.run_dir).more.contains("staleness"));
}

TEST_P(PipelineMetrics, AllocateNothing) {
  TrainSetup run = setup(40, "allocation", "fp32", stages);
  run.options.metrics.tensors_every = 2;
  run.planned = plan_that_fits(run.options);
  expect_no_allocation<float>(run, 10, 4);
}

INSTANTIATE_TEST_SUITE_P(Kinds, PipelineMetrics, testing::Values("muon"), kind_test_name);

}  // namespace
}  // namespace sestina
