// Asynchronous refreshes inside a real training run, for every optimizer that has them: a step allocates nothing; with
// fixed visibility the bits depend on no number of workers or threads, and a run that is interrupted while jobs are in
// flight ends with the same bits; metrics tell the ages.
#include <gtest/gtest.h>

#include "regression/unit/step/optimizer_run.hpp"

namespace sestina {
namespace {

std::vector<std::string> asynchronous_kinds() {
  std::vector<std::string> names;
  for (const std::string& name : kind_names())
    if (find_matrix_kind(name)->refresh_needs != nullptr) names.push_back(name);
  return names;
}

std::string keys(int workers, const std::string& visibility = "fixed", int staleness = 2) {
  return "[optimizer.refresh]\nevery = 4\nmode = \"async\"\nstaleness = " + std::to_string(staleness) +
         "\nvisibility = \"" + visibility + "\"\nworkers = " + std::to_string(workers) + "\n";
}

class AsyncTraining : public OptimizerRun {};

TEST_P(AsyncTraining, AllocatesNothing) {
  expect_no_allocation<float>(setup(40, "allocation", "fp32", keys(2)), 14, 8);
}

TEST_P(AsyncTraining, FixedBitsDependOnNoNumberOfWorkersOrThreads) {
  const std::string one = train(setup(11, "one", "fp32", keys(1)), Host(1));
  EXPECT_EQ(train(setup(11, "two", "fp32", keys(3)), Host(2)), one);
  EXPECT_NE(train(setup(11, "other", "fp32", keys(1, "fixed", 1)), Host(1)), one);
}

TEST_P(AsyncTraining, AResumeWithJobsInFlightGivesTheSameBits) {
  const std::string whole = train(setup(12, "whole", "fp32", keys(1)), Host());
  for (const int stop : {5, 6}) {  // of the two counts that kinds have, one is between its dispatch and its result
    const std::string run = "part" + std::to_string(stop);
    train(setup(stop, run, "fp32", keys(1)), Host());
    TrainSetup rest = setup(12, run, "fp32", keys(2));
    rest.checkpoint = newest_complete(rest.run_dir, false, [](const std::string&) {});
    EXPECT_EQ(train(rest, Host()), whole) << stop;
  }
}

TEST_P(AsyncTraining, NoStalenessIsInline) {
  EXPECT_EQ(weights_of(train_parts(setup(9, "none", "fp32", keys(1, "fixed", 0)), Host())),
            weights_of(train_parts(setup(9, "inline", "fp32", "[optimizer.refresh]\nevery = 4\n"), Host())));
}

TEST_P(AsyncTraining, MetricsTellTheAges) {
  for (const char* visibility : {"fixed", "eager"}) {
    const TrainSetup run = setup(16, std::string("age_") + visibility, "fp32", keys(1, visibility));
    train(run, Host());
    std::int64_t most = 0;
    double mean = 0;
    for (const TrainLine& line : read_history(run.run_dir).train) {
      most = std::max(most, line.preconditioner_age_max);
      mean = std::max(mean, line.preconditioner_age_mean);
      EXPECT_LE(line.preconditioner_age_mean, static_cast<double>(line.preconditioner_age_max));
    }
    const bool fixed = visibility == std::string("fixed");
    EXPECT_LE(most, 4 + 2 - 1);  // ahead of a result that is as late as it may be
    EXPECT_GE(most, fixed ? 5 : 3);
    EXPECT_GE(mean, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, AsyncTraining, testing::ValuesIn(asynchronous_kinds()), kind_test_name);

}  // namespace
}  // namespace sestina
