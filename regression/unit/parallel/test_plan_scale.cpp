// Planning takes time in proportion to layers, and little more than that to ranks: four times as much to plan takes
// about four times as long (a square would take sixteen), in processor time and in the best of a few tries.
#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <random>

#include "parallel/exchange/rank_memory.hpp"
#include "parallel/plan/plan_assign.hpp"
#include "plan_rig.hpp"

namespace sestina {
namespace {

double best_seconds(const std::function<void()>& work) {
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const std::clock_t start = std::clock();
    work();
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return best;
}

constexpr double most_growth = 9;  // between 4, with a logarithm, and 16

void plan_layers(int layers, int dp, int tp, int pp) {
  ModelConfig model = preset("llama-8m");
  model.num_hidden_layers = layers;
  Options options = plan_options(model, "muon", dp, tp);
  options.parallel.pp = pp;
  const Plan plan = make_plan(options);
  ASSERT_EQ(rank_memory(plan, 1).size(), static_cast<std::size_t>(plan.ranks()));
}

TEST(PlanScale, LayersCostTheSameEach) {
  for (const auto& [dp, tp, pp] : {std::tuple{1, 1, 1}, {4, 1, 1}, {1, 2, 1}, {1, 1, 4}}) {
    const double few = best_seconds([&, dp = dp, tp = tp, pp = pp] { plan_layers(3000, dp, tp, pp); });
    const double many = best_seconds([&, dp = dp, tp = tp, pp = pp] { plan_layers(12000, dp, tp, pp); });
    EXPECT_LT(many, most_growth * few) << "dp " << dp << " tp " << tp << " pp " << pp;
  }
}

// The exchange as it is defined: all pairs of all bins.
void improve_by_all_pairs(const ItemClasses& items, Packing& packing) {
  const std::size_t k = items.classes(), bins = packing.size();
  std::int64_t total = 0;
  for (const BinPattern& bin : packing) total += items.load(bin);
  for (std::size_t round = 0; round < 4 * bins; ++round) {
    std::size_t from = 0;
    for (std::size_t bin = 1; bin < bins; ++bin)
      if (items.load(packing[bin]) > items.load(packing[from])) from = bin;
    const std::int64_t full = items.load(packing[from]);
    if (full <= (total + static_cast<std::int64_t>(bins) - 1) / static_cast<std::int64_t>(bins)) return;
    std::int64_t best = full;
    Packing better;
    for (std::size_t to = 0; to < bins; ++to)
      for (std::size_t give = 0; to != from && give < k; ++give)
        for (std::size_t take = give + 1; packing[from][give] > 0 && take <= k; ++take) {
          if (take < k && packing[to][take] == 0) continue;
          Packing tried = packing;
          --tried[from][give];
          ++tried[to][give];
          if (take < k) {
            --tried[to][take];
            ++tried[from][take];
          }
          const std::int64_t fuller = std::max(items.load(tried[from]), items.load(tried[to]));
          if (fuller >= best) continue;
          best = fuller;
          better = tried;
        }
    if (better.empty()) return;
    packing = better;
  }
}

TEST(PlanScale, ExchangesAreThoseOfAllPairs) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    ItemClasses items;
    const std::size_t bins = 1 + random() % 6, classes = 1 + random() % 4;
    std::set<std::int64_t, std::greater<>> sizes;
    while (sizes.size() < classes) sizes.insert(1 + static_cast<std::int64_t>(random() % 20));
    items.size.assign(sizes.begin(), sizes.end());
    items.count.assign(classes, 0);
    Packing packing(bins, BinPattern(classes, 0));
    for (int item = 0; item < 25; ++item) {
      const std::size_t j = random() % classes;
      ++items.count[j];
      ++packing[random() % bins][j];
    }
    Packing expected = packing;
    improve_by_all_pairs(items, expected);
    improve(items, packing);
    ASSERT_EQ(packing, expected) << "round " << round;
  }
}

TEST(PlanScale, RanksCostLittleMoreThanTheSameEach) {
  const auto run = [](std::size_t bins) {
    std::mt19937 random(3);
    const ItemClasses items{{997, 613, 401, 211, 83}, BinPattern(5, static_cast<int>(3 * bins))};
    Packing packing(bins, BinPattern(5, 0));
    for (std::size_t j = 0; j < 5; ++j)
      for (std::size_t item = 0; item < 3 * bins; ++item) ++packing[random() % bins][j];
    improve(items, packing);
  };
  const double few = best_seconds([&] { run(1000); }), many = best_seconds([&] { run(4000); });
  EXPECT_LT(many, most_growth * few);
}

TEST(LoadTree, FindsTheLeastAndTheFirstWithin) {
  LoadTree tree(5);
  EXPECT_EQ(tree.least(), LoadTree::none);
  for (const auto& [bin, load] : {std::pair<std::size_t, std::int64_t>{0, 7}, {1, 3}, {2, 9}, {3, 3}, {4, 1}})
    tree.set(bin, load);
  EXPECT_EQ(tree.least(), 1);
  EXPECT_EQ(tree.first_within(1), 4u);
  EXPECT_EQ(tree.first_within(3), 1u);
  EXPECT_EQ(tree.first_within(100), 0u);
  tree.set(1, LoadTree::none);
  EXPECT_EQ(tree.first_within(3), 3u);
}

}  // namespace
}  // namespace sestina
