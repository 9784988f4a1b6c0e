// One line of metrics for all ranks.
#include "app/train/step_report.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace sestina {
namespace {

TEST(StepReport, PhasesAreThoseOfTheRankThatTookLongest) {
  RankStep quick, slow;
  quick.seconds = {0.5, 0.25, 0, 0, 0, 0, 0.75};
  quick.memory_peak_bytes = 3e9;
  slow.seconds = {0, 0.25, 0.25, 0.25, 0.125, 0.0625, 1};
  slow.memory_peak_bytes = 2e9;
  slow.preconditioner_age = 7;
  for (const auto& ranks : {std::vector{quick, slow}, std::vector{slow, quick}, std::vector{slow, slow, quick}}) {
    const RankStep all = of_all_ranks(ranks);
    EXPECT_EQ(all.seconds, slow.seconds);
    EXPECT_LE(std::accumulate(all.seconds.begin(), all.seconds.end() - 1, 0.0), all.seconds.back());
    EXPECT_EQ(all.memory_peak_bytes, 3e9);
    EXPECT_EQ(all.preconditioner_age, 7);
  }
}

TEST(StepReport, PhasesOfAStepAddUpToIt) {
  PhaseClock clock;
  clock.start();
  clock.end(Phase::data);
  for (volatile int i = 0; i < 100000;) i = i + 1;
  clock.end(Phase::forward_backward);
  clock.move(Phase::forward_backward, Phase::gather, clock[Phase::forward_backward] / 2);
  clock.end(Phase::optimizer);
  const auto seconds = clock.seconds();
  EXPECT_NEAR(std::accumulate(seconds.begin(), seconds.end() - 1, 0.0), seconds.back(), 1e-12);
  EXPECT_GT(clock[Phase::gather], 0);
}

}  // namespace
}  // namespace sestina
