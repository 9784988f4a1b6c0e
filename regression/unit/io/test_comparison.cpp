// Comparisons of runs: means, spreads, updates to a loss and the two tests of significance on numbers worked out by
// hand.
#include "io/report/comparison.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

using test::expect_error;

constexpr double rounding = 1e-12;  // a handful of operations on numbers near 1

std::string deck_text(const std::string& kind, int seed, int steps) {
  return fmt::format(
      "[run]\nname = \"{}\"\nseed = {}\nsteps = {}\n[schedule]\nsteps = {}\n[optimizer]\nkind = \"{}\"\n", seed, seed,
      steps, steps, kind);
}

// A run of 100 tokens an update whose validation loss falls in a straight line from `first` at 0 to `last` at `steps`.
ReportRun straight_run(const std::string& kind, int seed, int steps, double first, double last, int planned = 0) {
  ReportRun run;
  run.label = run.history.name = fmt::format("{}_seed={}", kind, seed);
  run.deck = deck_text(kind, seed, planned == 0 ? steps : planned);
  for (int step = 0; step <= steps; step += steps / 4)
    run.history.validation.push_back({step, first + (last - first) * step / steps, std::nullopt});
  TrainLine line;
  line.step = steps;
  line.tokens = static_cast<std::uint64_t>(steps) * 100;
  line.loss = last;
  run.history.train.push_back(line);
  return run;
}

TEST(Comparison, MeanAndSpreadByHand) {
  const std::vector<double> values = {1, 2, 6};
  EXPECT_NEAR(mean_spread(values).mean, 3, rounding);
  EXPECT_NEAR(*mean_spread(values).spread, std::sqrt(7.0), rounding);  // (4 + 1 + 9) / 2
  EXPECT_FALSE(mean_spread(std::vector<double>{5}).spread.has_value());
  EXPECT_TRUE(std::isnan(mean_spread({}).mean));
}

TEST(Comparison, ProbabilitiesOfTheNormalDistribution) {  // tables: 0.5, 1.6449 -> 0.05, 3.0902 -> 0.001
  EXPECT_NEAR(one_sided_p(0), 0.5, rounding);
  EXPECT_NEAR(one_sided_p(1.6448536269514722), 0.05, rounding);
  EXPECT_NEAR(one_sided_p(3.090232306167813), 0.001, rounding);
}

TEST(Comparison, UpdatesToALossLieOnTheLineBetweenPoints) {
  const std::vector<LossPoint> points = {{0, 4}, {10, 3}, {20, 3.5}, {30, 1}};
  EXPECT_EQ(*updates_to(points, 5), 0);
  EXPECT_NEAR(*updates_to(points, 3.25), 7.5, rounding);
  EXPECT_NEAR(*updates_to(points, 2), 26, rounding);  // 20 + 10 * 1.5 / 2.5
  EXPECT_FALSE(updates_to(points, 0.5).has_value());
}

TEST(Comparison, TrainingLossIsTheMeanOfTheLastTenth) {
  RunHistory run;
  for (int step = 1; step <= 20; ++step) {
    TrainLine line;
    line.step = step;
    line.loss = step;
    run.train.push_back(line);
  }
  EXPECT_NEAR(*final_loss(run, false), 19.5, rounding);
  run.diverged = true;
  EXPECT_TRUE(std::isinf(*final_loss(run, false)));
  EXPECT_FALSE(final_loss(RunHistory(), false).has_value());
}

TEST(Comparison, RunsOfEqualDecksButForTheSeedAreOneEntry) {
  const std::vector<ReportRun> runs = {straight_run("adamw", 1, 100, 4, 3), straight_run("muon", 1, 100, 4, 3),
                                       straight_run("adamw", 2, 100, 4, 3), straight_run("adamw", 3, 200, 4, 3)};
  EXPECT_EQ(equal_decks(runs), (std::vector<std::vector<std::size_t>>{{0, 2}, {1}, {3}}));
  EXPECT_EQ(compare_runs(runs, {}).entries[1].name, "muon");
}

TEST(Comparison, OneSidedRuleOfTheContest) {
  // (3.28 - 3.278) sqrt(4) = 0.004: with sigma 0.0013 z is 3.0769, and p = 0.00105 is just not below 0.001.
  std::vector<ReportRun> runs;
  for (int seed = 1; seed <= 4; ++seed) runs.push_back(straight_run("muon", seed, 100, 4, 3.278));
  const Comparison c = compare_runs(runs, {3.28, 0.0013});
  ASSERT_EQ(c.entries.size(), 1u);
  EXPECT_NEAR(*c.entries[0].z, 0.004 / 0.0013, 1e-9);
  EXPECT_NEAR(*c.entries[0].p, 0.0010459, 1e-6);
  EXPECT_NEAR(*c.entries[0].updates, 100 * (4 - 3.28) / (4 - 3.278), 1e-9);
  EXPECT_NEAR(*c.entries[0].tokens, 100 * *c.entries[0].updates, 1e-6);
  EXPECT_EQ(c.entries[0].reached, 4u);
}

TEST(Comparison, PairwiseRuleCountsTheStepsSaved) {
  // muon: 3.275 after 100 steps, n = 1; adamw: 3.276 and 3.278 after 300 steps. Lead: 0.002 + 0.009; 1 + 1/2.
  const std::vector<ReportRun> runs = {straight_run("adamw", 1, 300, 4, 3.276), straight_run("adamw", 2, 300, 4, 3.278),
                                       straight_run("muon", 1, 100, 4, 3.275)};
  const Comparison c = compare_runs(runs, {});
  EXPECT_EQ(c.sigma_from, "contest");
  ASSERT_EQ(c.pairs.size(), 1u);
  EXPECT_EQ(c.entries[c.pairs[0].better].name, "muon");
  EXPECT_NEAR(c.pairs[0].difference, 0.002, 1e-9);
  EXPECT_EQ(c.pairs[0].steps, 200);
  EXPECT_NEAR(c.pairs[0].z, 0.011 / (0.0013 * std::sqrt(1.5)), 1e-6);
  EXPECT_NEAR(*c.target, 3.277, rounding);  // the worst final mean
  EXPECT_EQ(c.entries[0].reached, 1u);      // the other seed ends above it, their mean reaches it at the end
  EXPECT_NEAR(*c.entries[0].updates, 300, 1e-6);
}

TEST(Comparison, SigmaIsPooledFromThreeRunsAndMore) {
  std::vector<ReportRun> runs;
  for (int seed = 1; seed <= 3; ++seed) runs.push_back(straight_run("muon", seed, 100, 4, 3 + 0.01 * seed));
  runs.push_back(straight_run("adamw", 1, 100, 4, 3.5));
  const Comparison c = compare_runs(runs, {});
  EXPECT_EQ(c.sigma_from, "pooled");
  EXPECT_NEAR(c.sigma, 0.01, 1e-9);
  EXPECT_EQ(compare_runs(runs, {std::nullopt, 0.5}).sigma, 0.5);
}

TEST(Comparison, RunsAtMidScheduleAreSaidAndNotTested) {
  const std::vector<ReportRun> runs = {straight_run("adamw", 1, 100, 4, 3.3, 400), straight_run("muon", 1, 100, 4, 3)};
  const Comparison c = compare_runs(runs, {});
  EXPECT_EQ(c.entries[0].mid_schedule, "mid-schedule: stopped at step 100 of 400");
  EXPECT_FALSE(c.entries[0].z.has_value());
  EXPECT_TRUE(c.entries[1].z.has_value());
  EXPECT_TRUE(c.pairs.empty());
  const auto json = nlohmann::json::parse(comparison_json(c));
  EXPECT_TRUE(json["entries"][0]["z"].is_null());
  EXPECT_EQ(json["entries"][0]["mid_schedule"], "mid-schedule: stopped at step 100 of 400");
  EXPECT_NE(comparison_text(c).find("no test is made"), std::string::npos);
}

TEST(Comparison, DivergedRunsHaveNoMeanAndRunsWithoutLossAreRefused) {
  std::vector<ReportRun> runs = {straight_run("adamw", 1, 100, 4, 3), straight_run("muon", 1, 100, 4, 3)};
  runs[1].history.diverged = true;
  const Comparison c = compare_runs(runs, {});
  EXPECT_EQ(*c.target, 3);
  EXPECT_TRUE(nlohmann::json::parse(comparison_json(c))["entries"][1]["mean"].is_null());
  EXPECT_NE(comparison_text(c).find("diverged"), std::string::npos);
  runs[1] = ReportRun();
  runs[1].label = "empty";
  expect_error(ExitCode::input_missing, {"empty", "no loss"}, [&] { compare_runs(runs, {}); });
}

}  // namespace
}  // namespace sestina
