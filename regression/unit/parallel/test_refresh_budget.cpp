// Refreshes of stages that are late by different numbers of updates: the same work in all, more where the delay is
// longer.
#include <gtest/gtest.h>

#include <numeric>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/base/routing.hpp"
#include "parallel/plan/refresh_budget.hpp"
#include "plan_rig.hpp"

namespace sestina {
namespace {

using Budget = RefreshOptions::Budget;
using Counts = std::vector<std::int64_t>;

double work(const std::vector<double>& cost, const Counts& counts) {
  return std::inner_product(cost.begin(), cost.end(), counts.begin(), 0.0);
}

TEST(RefreshBudget, WeightsFollowTheDelay) {
  RefreshOptions refresh;
  refresh.budget = Budget::stage_aware;
  const std::vector<int> delays = {3, 2, 1, 0};
  EXPECT_EQ(refresh_weights(refresh, delays), (std::vector<double>{4, 3, 2, 1}));
  refresh.budget_power = 2;
  EXPECT_EQ(refresh_weights(refresh, delays), (std::vector<double>{16, 9, 4, 1}));
  refresh.budget = Budget::reversed;
  EXPECT_EQ(refresh_weights(refresh, delays), (std::vector<double>{1, 4, 9, 16}));
  refresh.budget_power = 0;
  EXPECT_EQ(refresh_weights(refresh, delays), (std::vector<double>{1, 1, 1, 1}));
}

// Stages that cost the same: the work is that of the uniform budget exactly.
TEST(RefreshBudget, SharesOutAllOfIt) {
  EXPECT_EQ(share_refreshes({5, 5, 5, 5}, {4, 3, 2, 1}, 100, 1000), (Counts{160, 120, 80, 40}));
  EXPECT_EQ(share_refreshes({5, 5, 5, 5}, {1, 1, 1, 1}, 100, 1000), (Counts{100, 100, 100, 100}));
  EXPECT_EQ(share_refreshes({5, 5, 5}, {3, 2, 1}, 1, 10), (Counts{1, 1, 1}));
  EXPECT_EQ(share_refreshes({1, 1, 1, 1}, {4, 3, 2, 1}, 100, 130), (Counts{130, 130, 93, 47}));  // the rest goes round
}

// Any costs: at most the uniform work, less than one refresh under it, and monotone.
TEST(RefreshBudget, IsMonotoneAndNeverMoreWork) {
  std::uint64_t seed = 1;
  const auto random = [&] {
    return static_cast<double>((seed = seed * 6364136223846793005U + 1442695040888963407U) >> 40);
  };
  for (int trial = 0; trial < 200; ++trial) {
    const auto stages = static_cast<std::size_t>(2 + trial % 31);
    std::vector<double> cost, weight;
    for (std::size_t i = 0; i < stages; ++i) {
      cost.push_back(1 + random() / 1e6);
      weight.push_back(std::pow(static_cast<double>(stages - i), trial % 2 + 1));
    }
    const std::int64_t uniform = 1000, most = 10000;
    const Counts counts = share_refreshes(cost, weight, uniform, most);
    const double budget = static_cast<double>(uniform) * std::accumulate(cost.begin(), cost.end(), 0.0);
    EXPECT_LE(work(cost, counts), budget * (1 + 1e-8));
    EXPECT_GT(work(cost, counts), budget - 2 * *std::max_element(cost.begin(), cost.end()) * 1.0001);
    for (std::size_t i = 1; i < stages; ++i) EXPECT_GE(counts[i - 1], counts[i]);
    EXPECT_GE(counts.back(), 1);
  }
}

TEST(RefreshBudget, StagesOfAPlanHaveTheirShare) {
  Options options = plan_options(preset("llama-8m"), "soap", 1);
  options.parallel.pp = 8;
  options.parallel.schedule = ParallelOptions::Schedule::async_1f1b;
  options.optimizer.matrix->refresh_every = 10;
  EXPECT_EQ(make_plan(options).stages[0].refresh_window, 0);
  options.optimizer.refresh.budget = Budget::stage_aware;
  const Plan plan = make_plan(options);
  Counts counts;
  for (const StagePlan& stage : plan.stages) counts.push_back(stage.refreshes);
  EXPECT_EQ(plan.stages[0].refresh_window, 1000);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 800);  // as 8 stages, one in ten updates
  EXPECT_TRUE(std::is_sorted(counts.rbegin(), counts.rend()));
  EXPECT_GT(counts.front(), 7 * counts.back());
  options.optimizer.matrix->refresh_staleness = 5;  // one at a time under way
  for (const StagePlan& stage : make_plan(options).stages) EXPECT_LE(stage.refreshes, 1000 / 6);
}

// What a refresh costs is what the kind's row of the table says of each block: an embedding that a group gives to SOAP
// is cut along the vocabulary. The whole work is that of the uniform budget, but for what rounding leaves.
TEST(RefreshBudget, CostsAreThoseOfTheKind) {
  Options options = plan_options(preset("llama-8m"), "soap", 1);
  options.parallel.pp = 4;
  options.parallel.schedule = ParallelOptions::Schedule::async_1f1b;
  options.optimizer.matrix->refresh_every = 10;
  options.optimizer.matrix->set("max_dim", 2000);
  options.optimizer.refresh.budget = Budget::stage_aware;
  OptimizerGroup embedding;
  embedding.match = "*embed_tokens*";
  embedding.kind = "soap";
  options.optimizer.group.push_back(embedding);
  const Plan plan = make_plan(options);
  const MatrixKind& soap = *find_matrix_kind("soap");
  std::vector<double> cost;
  Counts counts;
  for (const StagePlan& stage : plan.stages) {
    double sum = 0;
    for (const TensorSpec& spec : stage.specs)
      if (is_matrix_optimized(spec, options.optimizer))
        for (const MatrixPart& part : matrix_parts(spec, options.optimizer))
          sum += soap.work(*options.optimizer.matrix, part.rows, part.cols).refresh;
    cost.push_back(sum);
    counts.push_back(stage.refreshes);
  }
  EXPECT_GT(cost[0], cost[1]);  // the embedding's blocks
  const double uniform =
      static_cast<double>(plan.stages[0].refresh_window / 10) * std::accumulate(cost.begin(), cost.end(), 0.0);
  EXPECT_LE(work(cost, counts), uniform * (1 + 1e-8));
  EXPECT_GT(work(cost, counts), uniform - 2 * *std::max_element(cost.begin(), cost.end()));
}

// So many in every window, as evenly as whole updates allow; without a count as ever.
TEST(RefreshBudget, FallsDueEvenly) {
  for (const std::int64_t count : {1, 7, 100, 166, 333, 999, 1000}) {
    RefreshPolicy policy;
    policy.count = count;
    policy.window = 1000;
    std::int64_t found = 0, last = 0;
    for (std::int64_t t = 1; t <= 1000; ++t) {
      if (!refresh_due(t, 10, 3, policy)) continue;
      ++found;
      EXPECT_GE(t - last, 1000 / count);
      EXPECT_LE(t - last, 1000 / count + 1);
      last = t;
    }
    EXPECT_EQ(found, count);
  }
  RefreshPolicy hundred;
  hundred.count = 100;
  hundred.window = 1000;
  for (std::int64_t t = 0; t < 50; ++t) EXPECT_EQ(refresh_due(t, 10, 0, hundred), refresh_due(t, 10, 0, {}));
}

}  // namespace
}  // namespace sestina
