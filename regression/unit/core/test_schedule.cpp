// The learning-rate shapes against their formulas, at the ends and in between.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/optimizer/learning_rate_schedule.hpp"

namespace sestina {
namespace {

ScheduleOptions options(ScheduleOptions::Kind kind) {
  ScheduleOptions o;
  o.kind = kind;
  o.warmup_steps = 5;
  o.steps = 30;
  o.decay_steps = 10;
  o.min_lr_ratio = 0.1;
  return o;
}
constexpr double rounding = 1e-15;

TEST(Schedule, WarmsUpLinearlyFromTheFirstStep) {
  using Kind = ScheduleOptions::Kind;
  for (const Kind kind : {Kind::cosine, Kind::linear, Kind::wsd, Kind::power, Kind::constant})
    for (int step = 1; step <= 5; ++step) EXPECT_DOUBLE_EQ(Schedule(options(kind)).factor(step), step / 5.0);
}

TEST(Schedule, CosineFollowsTheGoldenRates) {
  const Schedule schedule(options(ScheduleOptions::Kind::cosine));
  for (int step = 6; step <= 30; ++step) {
    const double low = 0.1, expected = low + 0.5 * (1 + std::cos(std::numbers::pi * (step - 5) / 25.0)) * (1 - low);
    EXPECT_NEAR(schedule.factor(step), expected, rounding) << step;
  }
  EXPECT_NEAR(schedule.factor(6), 0.996452, 1e-6);  // printed rates of the reference runs
  EXPECT_NEAR(schedule.factor(30), 0.1, rounding);
  EXPECT_EQ(schedule.factor(1000), schedule.factor(30));
}

TEST(Schedule, LinearGoesStraightDown) {
  const Schedule schedule(options(ScheduleOptions::Kind::linear));
  EXPECT_NEAR(schedule.factor(5 + 10), 1 - 0.9 * 10 / 25, rounding);
  EXPECT_NEAR(schedule.factor(30), 0.1, rounding);
  EXPECT_EQ(schedule.factor(31), schedule.factor(30));
}

TEST(Schedule, WsdIsFlatThenDecaysOverTheLastSteps) {
  const Schedule schedule(options(ScheduleOptions::Kind::wsd));
  for (int step = 5; step <= 20; ++step) EXPECT_EQ(schedule.factor(step), 1.0);
  EXPECT_NEAR(schedule.factor(25), 1 - 0.9 * 0.5, rounding);
  EXPECT_NEAR(schedule.factor(30), 0.1, rounding);
}

// PowerCool of modded-nanogpt, min(lr, c (T - t)^1.2), with c so that the two meet 10 updates before the end.
TEST(Schedule, PowerFallsAsThePublishedRule) {
  auto o = options(ScheduleOptions::Kind::power);
  o.min_lr_ratio = 0;
  const double c = 1 / std::pow(10.0, 1.2);
  for (int step = 5; step <= 30; ++step)
    EXPECT_NEAR(Schedule(o).factor(step), std::min(1.0, c * std::pow(30.0 - step, 1.2)), rounding) << step;
  o.min_lr_ratio = 0.1;
  EXPECT_NEAR(Schedule(o).factor(25), 0.1 + 0.9 * std::pow(0.5, 1.2), rounding);
  o.power = 2;
  EXPECT_NEAR(Schedule(o).factor(25), 0.1 + 0.9 * 0.25, rounding);
}

TEST(Schedule, ConstantStaysAndNoWarmUpStartsAtThePeak) {
  auto o = options(ScheduleOptions::Kind::constant);
  EXPECT_EQ(Schedule(o).factor(1000000), 1.0);
  o.warmup_steps = 0;
  EXPECT_EQ(Schedule(o).factor(1), 1.0);
}

TEST(Schedule, EmptyHorizonsAreHarmless) {
  auto o = options(ScheduleOptions::Kind::cosine);
  o.steps = 5;  // warm-up alone
  EXPECT_EQ(Schedule(o).factor(7), 1.0);
  o.steps = 0;
  o.warmup_steps = 0;
  EXPECT_EQ(Schedule(o).factor(1), 1.0);
}

TEST(Schedule, SaysWhenARunIsShorterThanItIs) {
  RunOptions run;
  run.steps = 5;
  auto o = options(ScheduleOptions::Kind::wsd);
  o.steps = 5;
  o.warmup_steps = 20;
  const std::string warning = short_run_warning(run, o);
  EXPECT_NE(warning.find("run.steps = 5 ends inside its warm-up of schedule.warmup_steps = 20"), warning.npos)
      << warning;
  EXPECT_NE(warning.find("at 0.25 of"), warning.npos) << warning;
  o.warmup_steps = 2;
  o.decay_steps = 4;
  EXPECT_NE(short_run_warning(run, o).find("schedule.decay_steps = 4"), warning.npos);
  o.decay_steps = 3;
  EXPECT_EQ(short_run_warning(run, o), "");
  o.steps = 100;  // a length of its own
  o.warmup_steps = 20;
  EXPECT_EQ(short_run_warning(run, o), "");
}

}  // namespace
}  // namespace sestina
