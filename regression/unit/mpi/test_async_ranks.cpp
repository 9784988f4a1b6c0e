// Asynchronous refreshes under data and tensor parallelism: each belongs to the rank that updates the matrix, and with
// fixed visibility nothing is exchanged for it. Against one rank, whoever owns what and whatever the workers are.
#include <gtest/gtest.h>

#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

TrainingCase late(TrainingCase run, int workers) {
  run.options.optimizer.refresh.asynchronous = true;
  run.options.optimizer.refresh.workers = workers;
  run.options.optimizer.matrix->refresh_staleness = 2;  // after the refreshes of update 4, or 5 for some
  return run;
}

// Ranks: AsyncRanks 2 4

// Four sequences on two or four ranks: sums are aligned, so that not a bit may differ.
TEST(AsyncRanks, DataParallelRanksChangeNoBit) {
  for (const std::string& kind : asynchronous_kinds()) {
    TrainingCase run = training_case(kind);
    const Trained at_once = train_alone<float>(run, 9), one = train_alone<float>(late(run, 2), 9);
    EXPECT_NE(one.weights, at_once.weights) << kind;
    run.options.parallel.dp = world().size();
    run.options.parallel.bucket_elements = 20000;
    for (const auto partition :
         {ParallelOptions::Partition::optimal, ParallelOptions::Partition::replicated}) {  // replicas do not drift
      run.options.parallel.partition = partition;
      EXPECT_EQ(train_together<float>(late(run, 1), 9).weights, one.weights)
          << kind << ", partition " << static_cast<int>(partition);
    }
  }
}

TEST(AsyncRanks, TensorParallelRanksAgreeWithOne) {
  for (const std::string& kind : asynchronous_kinds()) {
    TrainingCase run = training_case(kind);
    const Trained one = train_alone<float>(late(run, 1), 7);
    run.options.parallel.tp = 2;
    run.options.parallel.dp = world().size() / 2;
    run.options.parallel.bucket_elements = 20000;
    for (const auto update : {ParallelOptions::TpUpdate::home, ParallelOptions::TpUpdate::duplicated}) {
      run.options.parallel.tp_update = update;
      const Trained several = train_together<float>(late(run, 1), 7);
      EXPECT_LT(largest_difference(one, several), allowed_drift(kind, 7).loss) << kind;
      EXPECT_LT(weight_difference(one, several), allowed_drift(kind, 7).weights) << kind;
    }
  }
}

}  // namespace
}  // namespace sestina
