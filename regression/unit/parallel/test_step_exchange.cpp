// When the ranks of a run know of a step, by what one process tells itself.
#include "parallel/step/step_exchange.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "regression/unit/parallel/plan_rig.hpp"

namespace sestina {
namespace {

Plan plan_of_stages(ParallelOptions::Schedule schedule) {
  Options options = plan_options(small_model(), "soap", 1);
  options.parallel.pp = 3;
  options.parallel.schedule = schedule;
  options.parallel.clip_scope = ParallelOptions::ClipScope::global_lagged;
  if (schedule != ParallelOptions::Schedule::async_1f1b)
    options.parallel.clip_scope = ParallelOptions::ClipScope::global;
  return make_plan({options, 1});
}

// Of update t: squares t, 2 t and 3 t of the stages, which are two, one and no update late.
void fill_in(RankReport& mine, double t) {
  mine.clear();
  for (int stage = 0; stage < 3; ++stage) mine.stages[at(stage)] = {(stage + 1) * t, 2.0 - stage, t, 4 * t, 0.5};
  mine.sums = {10 * t, 0};
  mine.votes = {0, t == 2 ? 1.0 : 0, 0};
  mine.step.seconds.back() = t;
}

TEST(StepExchange, ASynchronousStepIsFinishedAtOnceWithItsOwnSums) {
  const auto alone = make_lone_communicator();
  const Plan plan = plan_of_stages(ParallelOptions::Schedule::one_f_one_b);
  StepExchange exchange(*alone, plan);
  EXPECT_EQ(exchange.lag(), 0);
  fill_in(exchange.mine(), 7);
  const auto steps = exchange.tell({.times = true}, 7, {1.5, 2.5, true});
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].update, 7);
  EXPECT_EQ(steps[0].sums.loss, 1.5);
  EXPECT_EQ(steps[0].sums.norm, 2.5);
  EXPECT_EQ(steps[0].report.step.seconds.back(), 7);
  EXPECT_EQ(steps[0].report.votes.save, 0);  // was not told
  EXPECT_TRUE(steps[0].delays.updates.empty());
  EXPECT_TRUE(exchange.finish().empty());
}

TEST(StepExchange, AnAsynchronousStepIsFinishedTheLagLater) {
  const auto alone = make_lone_communicator();
  const Plan plan = plan_of_stages(ParallelOptions::Schedule::async_1f1b);
  StepExchange exchange(*alone, plan);
  ASSERT_EQ(exchange.lag(), 3);
  const ReportParts told{.votes = true, .times = true};
  for (int t = 1; t <= 5; ++t) {
    fill_in(exchange.mine(), t);
    if (t == 2) exchange.mine().sums.overflows = 1;
    EXPECT_EQ(exchange.norm_before(t - 1).has_value(), t > 3) << t;
    if (t > 3) EXPECT_EQ(exchange.norm_before(t - 1), std::sqrt(6.0 * (t - 3))) << t;
    const auto steps = exchange.tell(told, t, {});
    ASSERT_EQ(steps.size(), t > 3 ? 1u : 0u) << t;
    if (t <= 3) continue;
    EXPECT_EQ(steps[0].update, t - 3);
    EXPECT_EQ(steps[0].sums.loss, 10 * (t - 3));
    EXPECT_EQ(steps[0].sums.norm, std::sqrt(6.0 * (t - 3)));
    EXPECT_EQ(steps[0].sums.weights_finite, t - 3 != 2);
    EXPECT_EQ(steps[0].report.votes.save, t - 3 == 2 ? 1 : 0);
    EXPECT_EQ(steps[0].delays.updates, (std::vector<double>{2, 1, 0}));
    EXPECT_EQ(steps[0].delays.drift, (std::vector<double>{0.5, 0.5, 0.5}));
  }
  const auto rest = exchange.finish();
  ASSERT_EQ(rest.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rest[at(i)].update, 3 + i);
  EXPECT_EQ(exchange.norms(), (std::vector<double>{std::sqrt(18.0), std::sqrt(24.0), std::sqrt(30.0)}));
  StepExchange again(*alone, plan);
  again.start_at(5, exchange.norms());
  EXPECT_EQ(again.norm_before(5), std::sqrt(18.0));
  EXPECT_FALSE(again.norm_before(4));
}

}  // namespace
}  // namespace sestina
