// Every matrix optimizer inside a real training run: a step allocates nothing, its bits do not depend on the number of
// threads in deterministic mode, and a run that is interrupted and resumed ends with the same bits.
#include <gtest/gtest.h>

#include "regression/unit/step/optimizer_run.hpp"

namespace sestina {
namespace {

class OptimizerSteps : public OptimizerRun {};

TEST_P(OptimizerSteps, AllocateNothing) {
  // The second refresh is among the warm steps.
  expect_no_allocation<float>(setup(9, "allocation_fp32", "fp32"), 4, 4);
  expect_no_allocation<bf16>(setup(9, "allocation_bf16", "bf16"), 4, 4);
}

TEST_P(OptimizerSteps, BitsDoNotDependOnTheNumberOfThreads) {
  EXPECT_EQ(train(setup(5, "one", "fp32"), Host(1)), train(setup(5, "two", "fp32"), Host(2)));
}

TEST_P(OptimizerSteps, ResumeToTheSameBits) {
  const std::string whole = train(setup(6, "whole", "fp32"), Host());
  train(setup(3, "part", "fp32"), Host());
  TrainSetup rest = setup(6, "part", "fp32");
  rest.checkpoint = newest_complete(rest.run_dir, false, [](const std::string&) {});
  EXPECT_EQ(train(rest, Host()), whole);
}

// A refresh every second update: what is used is at most one update old, and the lines say so.
TEST_P(OptimizerSteps, MetricsTellTheAgeOfPreconditioners) {
  const TrainSetup run = setup(8, "age", "fp32");
  train(run, Host());
  std::int64_t most = 0;
  for (const TrainLine& line : read_history(run.run_dir).train) most = std::max(most, line.preconditioner_age_max);
  EXPECT_EQ(most, find_matrix_kind(GetParam())->refresh_every > 0 ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerSteps, testing::ValuesIn(kind_names()), kind_test_name);

}  // namespace
}  // namespace sestina
