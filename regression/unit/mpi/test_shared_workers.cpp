// The refresh workers of a process are those of all its stages: so many threads as the deck says, whatever pp is, and
// the same bits.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/optimizer/refresh/refresh_workers.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

std::ptrdiff_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

TrainingCase four_layers(const std::string& kind, int stages, int workers) {
  TrainingCase run = training_case(kind);
  run.options.model.num_hidden_layers = 4;
  run.options.parallel.pp = stages;
  run.options.optimizer.refresh.asynchronous = true;
  run.options.optimizer.refresh.workers = workers;
  run.options.optimizer.matrix->refresh_staleness = 2;
  return run;
}

// Ranks: SharedWorkers 1

TEST(SharedWorkers, AreOnePoolForAllStagesOfAProcess) {
  for (const int workers : {1, 3}) {
    const TrainingCase run = four_layers("soap", 4, workers);
    const std::ptrdiff_t before = threads_of_process();
    {
      TypedExecutor<Host, float> executor(Host(), make_plan({run.options, 1}), world());
      ASSERT_EQ(executor.stage_count(), 4u);
      EXPECT_EQ(threads_of_process() - before, workers);
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_NE(executor.stage(i).optimizer().workers(), nullptr);
        EXPECT_EQ(executor.stage(i).optimizer().workers(), executor.stage(0).optimizer().workers());
      }
    }
    EXPECT_EQ(threads_of_process(), before);
  }
}

TEST(SharedWorkers, ChangeNoBit) {
  for (const std::string& kind : asynchronous_kinds()) {
    const Trained one = train_alone<float>(four_layers(kind, 1, 1), 7);
    for (const int workers : {1, 2})
      EXPECT_EQ(train_alone<float>(four_layers(kind, 4, workers), 7).weights, one.weights) << kind << " " << workers;
  }
}

TEST(SharedWorkers, StartNoThreadForNothing) {
  TrainingCase plain = four_layers("soap", 4, 3);
  plain.options.optimizer.refresh.asynchronous = false;
  plain.options.optimizer.matrix->refresh_staleness = 0;
  const std::ptrdiff_t before = threads_of_process();
  const TypedExecutor<Host, float> executor(Host(), make_plan({plain.options, 1}), world());
  EXPECT_EQ(threads_of_process(), before);
}

}  // namespace
}  // namespace sestina
