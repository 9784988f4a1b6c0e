// One line of metrics for all ranks.
#include "app/train/step_report.hpp"

#include <gtest/gtest.h>

#include <cmath>
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
  slow.preconditioner_ages = 9;
  slow.preconditioners = 3;
  slow.energy = 2.5;
  quick.energy = 0.5;
  slow.package = 2, slow.memory = 0.25, slow.device = 0.25, slow.processor = 4;
  quick.package = 0.5, quick.processor = 3;
  quick.preconditioner_ages = 1;
  quick.refresh_copies = 0.5, quick.refresh_workers = 2;
  slow.refresh_copies = 0.25, slow.refresh_workers = 1;
  quick.refreshed_sides = 2, quick.basis_drift = 0.5;
  slow.refreshed_sides = 3;  // none of its checks was booked
  quick.preconditioners = 2;
  for (const auto& ranks : {std::vector{quick, slow}, std::vector{slow, quick}, std::vector{slow, slow, quick}}) {
    RankStep all;
    for (const RankStep& rank : ranks) all.add(rank);
    EXPECT_EQ(all.seconds, slow.seconds);
    EXPECT_LE(std::accumulate(all.seconds.begin(), all.seconds.end() - 1, 0.0), all.seconds.back());
    EXPECT_EQ(all.memory_peak_bytes, 3e9);
    EXPECT_EQ(all.preconditioner_age, 7);
    const double slows = static_cast<double>(ranks.size() - 1);
    EXPECT_EQ(all.preconditioner_ages, 1 + 9 * slows);
    EXPECT_EQ(all.preconditioners, 2 + 3 * slows);
    EXPECT_EQ(all.energy, 0.5 + 2.5 * slows);
    EXPECT_EQ(all.package, 0.5 + 2 * slows);
    EXPECT_EQ(all.memory, 0.25 * slows);
    EXPECT_EQ(all.device, 0.25 * slows);
    EXPECT_EQ(all.processor, 3 + 4 * slows);
    EXPECT_EQ(all.refresh_copies, 0.25);
    EXPECT_EQ(all.refresh_workers, 2 + slows);
    EXPECT_EQ(all.refreshed_sides, 2 + 3 * slows);
    EXPECT_EQ(all.basis_drift, 0.5);
  }
}

TEST(StepReport, EnergyOfANodeThatIsNotKnownMakesAllUnknown) {
  RankStep known, unknown;
  known.energy = 5;
  unknown.energy = std::nan("");
  RankStep all;
  for (const RankStep& rank : {known, unknown, known}) all.add(rank);
  EXPECT_TRUE(std::isnan(all.energy));
}

TEST(StepReport, LogLinesFitInto100Columns) {
  const auto text = [](const LogLine& line) {
    fmt::memory_buffer buffer;
    append_log_line(buffer, line);
    return fmt::to_string(buffer);
  };
  EXPECT_EQ(text({300, 600, 5.19784, 0.5921, 2.96e-4, 0.4123, 4967, 85, {1, 92, 7}}),
            "step    300/600  loss 5.1978  grad_norm 0.592  lr 2.96e-04  0.412 s  4967 tok/s  1+92+7%  ETA 1m25s");
  const std::string large =
      text({123456, 200000, 11.12345, 12.3456, 1e-3, 12.345, 123'456'789, 3600 * 99, {0, 90, 10}});
  EXPECT_LE(large.size(), 100u) << large;
  for (const char* part :
       {"123456/200000 ", "loss 11.1235 ", "grad_norm 12.346 ", " 123M tok/s ", "0+90+10% ", "ETA 99h00m"})
    EXPECT_NE(large.find(part), std::string::npos) << part << ": " << large;
}

// Halves are rounded up, and the last number gives way.
TEST(StepReport, PercentagesAddUpTo100) {
  using Percent = std::array<int, 3>;
  EXPECT_EQ(step_percent(0.01, 0.92, 1), (Percent{1, 92, 7}));
  EXPECT_EQ(step_percent(0.005, 0.995, 1), (Percent{1, 99, 0}));
  EXPECT_EQ(step_percent(1, 1, 3), (Percent{33, 33, 34}));
  EXPECT_EQ(step_percent(0, 7, 7), (Percent{0, 100, 0}));
  for (int data = 0; data <= 1000; data += 7)
    for (int model = 0; model <= 1000 - data; ++model) {
      const Percent percent = step_percent(data * 1e-3, model * 1e-3, 1);
      EXPECT_EQ(percent[0] + percent[1] + percent[2], 100);
      EXPECT_GE(percent[2], 0);
      EXPECT_LE(std::abs(percent[0] - 0.1 * data), 0.5 + 1e-9);
      EXPECT_LE(std::abs(percent[1] - 0.1 * model), 1.5);  // at most one less for the rounding of the first
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
