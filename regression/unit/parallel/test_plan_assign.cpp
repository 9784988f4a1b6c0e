// The best free assignment against exhaustive search on small cases, its bound, and the tools it is made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "parallel/plan/plan_assign.hpp"

namespace sestina {
namespace {

using Costs = std::vector<std::int64_t>;

std::int64_t largest(const Costs& cost, const std::vector<int>& bin, int bins) {
  Costs load(static_cast<std::size_t>(bins), 0);
  for (std::size_t i = 0; i < cost.size(); ++i) load.at(static_cast<std::size_t>(bin.at(i))) += cost[i];
  return *std::max_element(load.begin(), load.end());
}

// The least largest load, by trying every assignment.
std::int64_t exhaustive(const Costs& cost, Costs& load, std::size_t item = 0) {
  if (item == cost.size()) return *std::max_element(load.begin(), load.end());
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  for (std::size_t bin = 0; bin < load.size(); ++bin) {
    load[bin] += cost[item];
    best = std::min(best, exhaustive(cost, load, item + 1));
    load[bin] -= cost[item];
    if (load[bin] == 0) break;  // empty bins are equal
  }
  return best;
}

TEST(PlanAssign, HandMadeCases) {
  // Longest first gives 7 (3+2+2 next to 3+2); 3+3 and 2+2+2 is the best.
  const Costs graham = {3, 3, 2, 2, 2};
  EXPECT_EQ(assign_longest_first(graham, 2).largest, 7);
  const Assignment best = assign_optimal(graham, 2);
  EXPECT_EQ(best.largest, 6);
  EXPECT_EQ(best.bound, 6);
  EXPECT_EQ(largest(graham, best.bin, 2), 6);
}

TEST(PlanAssign, EdgesOfCounts) {
  const Assignment none = assign_optimal({}, 4);
  EXPECT_TRUE(none.bin.empty());
  EXPECT_EQ(none.largest, 0);
  EXPECT_EQ(none.bound, 0);
  const Costs few = {5, 4};
  const Assignment more_bins = assign_optimal(few, 7);
  EXPECT_EQ(more_bins.largest, 5);
  EXPECT_NE(more_bins.bin[0], more_bins.bin[1]);
  EXPECT_EQ(assign_optimal(few, 1).largest, 9);
  EXPECT_EQ(assign_optimal(few, 1).bin, (std::vector<int>{0, 0}));
  const Assignment free = assign_optimal({0, 0, 0}, 2);  // nothing costs anything
  EXPECT_EQ(free.largest, 0);
  EXPECT_EQ(free.bin.size(), 3u);
}

TEST(PlanAssign, BoundsAreThoseOfTheCosts) {
  EXPECT_EQ(load_bound({4, 4, 4}, 2), 8);         // pigeonhole
  EXPECT_EQ(load_bound({9, 1, 1, 1}, 3), 9);      // largest item
  EXPECT_EQ(load_bound({1, 1, 1, 1, 1}, 2), 3);   // mean, rounded up
  EXPECT_EQ(load_bound({5, 5, 5, 5, 5}, 2), 15);  // pigeonhole of three
}

TEST(PlanAssign, FindsTheBestOfSmallRandomCases) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const int bins = 2 + static_cast<int>(random() % 3), items = 3 + static_cast<int>(random() % 7);
    const int kinds = 1 + static_cast<int>(random() % 4);
    Costs sizes, cost;
    for (int k = 0; k < kinds; ++k) sizes.push_back(1 + static_cast<std::int64_t>(random() % 50));
    for (int i = 0; i < items; ++i) cost.push_back(sizes[random() % sizes.size()]);
    Costs load(static_cast<std::size_t>(bins), 0);
    const std::int64_t best = exhaustive(cost, load);
    const Assignment found = assign_optimal(cost, bins);
    ASSERT_EQ(largest(cost, found.bin, bins), found.largest);
    ASSERT_LE(found.bound, best) << "a bound that is not one, round " << round;
    ASSERT_EQ(found.largest, best) << "round " << round;
    ASSERT_LE(best, assign_longest_first(cost, bins).largest);
  }
}

TEST(PlanAssign, IsDealtRound) {
  // Neighbours, which share a bucket, go to different bins.
  const Assignment found = assign_optimal(Costs(12, 10), 4);
  for (std::size_t i = 0; i + 1 < 12; ++i) EXPECT_NE(found.bin[i], found.bin[i + 1]);
}

TEST(LoadPatterns, ProgrammeBoundsTheBins) {
  // Two 6s never share a bin of 10, a 4 fits next to each: 6 bins, and 8 items of 4 more take 4 bins of two.
  const ItemClasses items{{6, 4}, {6, 14}};
  const PatternProgram program = solve_patterns(items, 10, 1e9);
  EXPECT_NEAR(program.bound, 10, 1e-9);
  ASSERT_TRUE(round_patterns(items, program, 10, 10));
  EXPECT_FALSE(round_patterns(items, program, 9, 10));
  EXPECT_EQ(largest_load(items, *round_patterns(items, program, 10, 10)), 10);
}

TEST(LoadPatterns, NextLoadIsTheNextSumOfItems) {
  const ItemClasses items{{6, 4}, {2, 2}};
  EXPECT_EQ(next_load(items, 0), 4);
  EXPECT_EQ(next_load(items, 4), 6);
  EXPECT_EQ(next_load(items, 6), 8);
  EXPECT_EQ(next_load(items, 8), 10);
  EXPECT_EQ(next_load(items, 12), 14);
  EXPECT_EQ(next_load(items, 16), 20);
  EXPECT_EQ(next_load(items, 20), 21);  // nothing is larger: any number above is right
}

std::int64_t largest_shard(const Costs& bytes, const std::vector<int>& bucket, const std::vector<int>& bin, int bins) {
  std::int64_t most = 0;
  for (int k = 0; k <= bucket.back(); ++k) {
    Costs here = bytes;
    for (std::size_t i = 0; i < here.size(); ++i) here[i] *= bucket[i] == k;
    most = std::max(most, largest(here, bin, bins));
  }
  return most;
}

// The same loads in fewer bytes.
TEST(PlanAssign, BytesAreTheSecondKey) {
  const Costs cost = {4, 4, 4, 4, 2, 2, 2, 2}, bytes = {9, 9, 1, 1, 5, 5, 1, 1};
  Assignment best = assign_optimal(cost, 4);
  const std::int64_t load = best.largest;
  best.bin = {0, 1, 2, 3, 0, 1, 2, 3};  // 14 bytes at the first two
  even_bytes(cost, bytes, 4, best);
  EXPECT_EQ(largest(cost, best.bin, 4), load);
  EXPECT_EQ(largest(bytes, best.bin, 4), 10);
}

// Four large and four small ones, and two buckets: no bin needs two large ones of one bucket.
TEST(PlanAssign, BucketsAreTheThirdKey) {
  const Costs cost = {8, 8, 1, 1, 8, 8, 1, 1};
  const std::vector<int> bucket = {0, 0, 0, 0, 1, 1, 1, 1};
  std::vector<int> place = {0, 0, 0, 0, 1, 1, 1, 1};
  even_buckets(cost, cost, bucket, 2, 1, place);
  for (const int first : {0, 2, 4, 6})
    EXPECT_NE(place[static_cast<std::size_t>(first)], place[static_cast<std::size_t>(first) + 1]);
}

// Random cases: no load above the first key's, no more bytes at a bin than before, nor of a bucket.
TEST(PlanAssign, LaterKeysLeaveEarlierOnesAlone) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const int bins = 2 + static_cast<int>(random() % 6), items = 4 + static_cast<int>(random() % 40);
    Costs cost, bytes;
    std::vector<int> bucket;
    for (int i = 0; i < items; ++i) {
      cost.push_back(static_cast<std::int64_t>(random() % 4));
      bytes.push_back(1 + static_cast<std::int64_t>(random() % 3) * 7);
      bucket.push_back(i * 4 / items);
    }
    Assignment best = assign_optimal(cost, bins);
    const std::int64_t before = largest(bytes, best.bin, bins);
    even_bytes(cost, bytes, bins, best);
    ASSERT_LE(largest(cost, best.bin, bins), best.largest);
    ASSERT_LE(largest(bytes, best.bin, bins), before);
    std::vector<int> place = best.bin;
    even_buckets(cost, bytes, bucket, bins, 1, place);
    ASSERT_LE(largest(cost, place, bins), largest(cost, best.bin, bins));
    ASSERT_LE(largest(bytes, place, bins), largest(bytes, best.bin, bins));
    ASSERT_LE(largest_shard(bytes, bucket, place, bins), largest_shard(bytes, bucket, best.bin, bins));
  }
}

}  // namespace
}  // namespace sestina
