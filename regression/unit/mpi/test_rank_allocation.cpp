// After its first steps no rank allocates anything in a step, whatever the grid and the optimizer.
#include <gtest/gtest.h>

#include "regression/unit/allocation_counter.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

// The same window again and again: a driver that allocates nothing.
struct OneWindow final : StepDriver {
  explicit OneWindow(const Options& options) : tokens(sample_tokens(options, 3)) {}
  BatchView next_batch() override { return {tokens.data(), nullptr}; }
  double factor(std::int64_t) override { return 1; }
  std::vector<std::int32_t> tokens;
};

// Ranks: RankAllocation 4

TEST(RankAllocation, AStepAllocatesNothing) {
  for (const char* kind : {"muon", "soap", "adamw"})
    for (const int tp : {1, 2}) {
      TrainingCase run = training_case(kind);
      run.options.train.global_batch = 8;
      run.options.parallel.tp = tp;
      run.options.parallel.dp = world().size() / tp;
      Executor<Host, bf16> session(Host(), run.options, world());
      session.initialise(5);
      OneWindow driver(run.options);
      int t = 0;
      while (t < 8) session.step(++t, driver);  // two refreshes are in it
      AllocationCounter counter;
      while (t < 13) session.step(++t, driver);
      EXPECT_EQ(counter.heap(), 0) << kind << ", tp " << tp << "\n" << counter.places();
      EXPECT_EQ(counter.kokkos(), 0) << kind << ", tp " << tp << "\n" << counter.places();
      session.finish_gather();
    }
}

}  // namespace
}  // namespace sestina
