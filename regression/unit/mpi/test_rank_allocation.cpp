// After its first steps no rank allocates anything in a step, whatever the grid and the optimizer.
#include <gtest/gtest.h>

#include "regression/unit/allocation_counter.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

void step(DistributedSession<Host, bf16>& run, const std::vector<std::int32_t>& tokens, int t) {
  for (int micro = 0; micro < run.share().count; ++micro) {
    run.session().load(tokens.data(), nullptr);
    run.forward_backward(1e-2, micro);
  }
  const auto sums = run.complete();
  run.update(t, 1.0, clip_scale(sums.norm, 1.0));
}

// Ranks: RankAllocation 4

TEST(RankAllocation, AStepAllocatesNothing) {
  for (const char* kind : {"muon", "soap", "adamw"})
    for (const int tp : {1, 2}) {
      TrainingCase run = training_case(kind);
      run.options.train.global_batch = 8;
      run.options.parallel.tp = tp;
      run.options.parallel.dp = world().size() / tp;
      DistributedSession<Host, bf16> session(Host(), run.options, world());
      session.initialise(5);
      const std::vector<std::int32_t> tokens = sample_tokens(run.options, 3);
      int t = 0;
      while (t < 8) step(session, tokens, ++t);  // two refreshes are in it
      AllocationCounter counter;
      while (t < 13) step(session, tokens, ++t);
      EXPECT_EQ(counter.heap(), 0) << kind << ", tp " << tp << "\n" << counter.places();
      EXPECT_EQ(counter.kokkos(), 0) << kind << ", tp " << tp << "\n" << counter.places();
      session.finish_gather();
    }
}

}  // namespace
}  // namespace sestina
