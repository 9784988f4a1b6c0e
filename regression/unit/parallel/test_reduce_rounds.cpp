// Sums in rounds, acted out for all ranks at once: the tree of one sum over all ranks, whatever the rounds; bounds of
// messages and memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/exchange/rank_memory.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/rounds/reduce_rounds.hpp"
#include "plan_rig.hpp"

namespace sestina {
namespace {

// What tree_sum does with parts, as text: pairs of neighbours, the last one may be alone.
std::string tree_of(std::vector<std::string> parts) {
  while (parts.size() > 1) {
    std::vector<std::string> next;
    for (std::size_t i = 0; i < parts.size(); i += 2)
      next.push_back(i + 1 < parts.size() ? "(" + parts[i] + "+" + parts[i + 1] + ")" : parts[i]);
    parts = std::move(next);
  }
  return parts[0];
}

// By rank and owner: the sums that each rank has after the rounds; empty where it has given its own away.
std::vector<std::vector<std::string>> act_out(int ranks, const std::vector<int>& levels) {
  std::vector<std::vector<std::string>> has(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) has[static_cast<std::size_t>(r)].assign(has.size(), std::to_string(r));
  int before = 0;
  for (const int level : levels) {
    auto after = has;
    for (int r = 0; r < ranks; ++r) {
      const RoundRoute route = round_route(ranks, r, before, level);
      auto& mine = after[static_cast<std::size_t>(r)];
      for (const RoundRoute::Way& way : route.sent) mine[static_cast<std::size_t>(way.owner)].clear();
      for (std::size_t k = 0; k < route.kept.size(); ++k) {
        const auto owner = static_cast<std::size_t>(route.kept[k]);
        std::vector<std::string> parts;
        for (const int peer : route.from[k]) parts.push_back(has[static_cast<std::size_t>(peer)][owner]);
        parts.insert(parts.begin() + route.place, has[static_cast<std::size_t>(r)][owner]);
        EXPECT_EQ(parts.size(), static_cast<std::size_t>(route.parts));
        mine[owner] = tree_of(parts);
      }
    }
    has = after;
    before = level;
  }
  return has;
}

std::vector<int> rounds_of(int ranks, int step) {
  std::vector<int> levels;
  int all = 0;
  while ((1 << all) < ranks) ++all;
  for (int level = 0; level < all;) levels.push_back(level = std::min(level + step, all));
  return levels;
}

TEST(ReduceRounds, OfAnyNumberOfLevelsAreTheSameTree) {
  for (int ranks = 2; ranks <= 37; ++ranks) {
    std::vector<std::string> leaves;
    for (int r = 0; r < ranks; ++r) leaves.push_back(std::to_string(r));
    for (const int step : {1, 2, 3, 6}) {
      const auto has = act_out(ranks, rounds_of(ranks, step));
      for (std::size_t r = 0; r < has.size(); ++r)
        for (std::size_t owner = 0; owner < has.size(); ++owner)
          EXPECT_EQ(has[r][owner], r == owner ? tree_of(leaves) : "") << ranks << " ranks, rounds of " << step;
    }
  }
}

// Both ends of a message know of it: who receives, from whom, which owners' pieces, in one order.
TEST(ReduceRounds, PairOffWhatIsSentAndReceived) {
  for (int ranks = 2; ranks <= 37; ++ranks)
    for (const int step : {1, 2, 6}) {
      std::map<std::pair<int, int>, std::vector<int>> sent, received;
      int before = 0;
      for (const int level : rounds_of(ranks, step)) {
        for (int r = 0; r < ranks; ++r) {
          const RoundRoute route = round_route(ranks, r, before, level);
          for (const RoundRoute::Way& way : route.sent) sent[{r, way.to}].push_back(way.owner);
          for (std::size_t k = 0; k < route.kept.size(); ++k)
            for (const int peer : route.from[k]) received[{peer, r}].push_back(route.kept[k]);
        }
        EXPECT_EQ(sent, received) << ranks << " ranks, level " << level;
        before = level;
      }
    }
}

TEST(ReduceRounds, CountTheElementsThatComeToEachRank) {
  for (int ranks = 2; ranks <= 21; ++ranks) {
    std::vector<std::size_t> lengths;
    for (int r = 0; r < ranks; ++r) lengths.push_back(static_cast<std::size_t>(r * 7 % 5));
    for (const int step : {1, 2, 6}) {
      std::vector<std::size_t> counted(lengths.size());
      int before = 0;
      for (const int level : rounds_of(ranks, step)) {
        for (int r = 0; r < ranks; ++r) {
          const RoundRoute route = round_route(ranks, r, before, level);
          for (std::size_t k = 0; k < route.kept.size(); ++k)
            counted[static_cast<std::size_t>(r)] +=
                route.from[k].size() * lengths[static_cast<std::size_t>(route.kept[k])];
        }
        before = level;
      }
      EXPECT_EQ(elements_of_chunk({rounds_of(ranks, step), 1}, lengths), counted) << ranks << " ranks";
    }
  }
}

TEST(ReduceRounds, OfManyRanksAndSmallPiecesHaveFewMessages) {
  const auto messages = [](int ranks, std::size_t length, const NodeLevels& nodes, LinkModel link = {}) {
    const std::vector<std::size_t> lengths(static_cast<std::size_t>(ranks), length);
    const ReduceRounds rounds = choose_rounds(lengths, nodes, static_cast<std::size_t>(ranks) * length, link);
    std::size_t count = 0;
    int before = 0;
    for (const int level : rounds.levels) {
      std::map<int, int> peers;
      for (const RoundRoute::Way& way : round_route(ranks, 0, before, level).sent) ++peers[way.to];
      count += peers.size();
      before = level;
    }
    return count;
  };
  EXPECT_EQ(messages(4, 1000, even_nodes(4, 4)), 3u);  // directly
  EXPECT_LE(messages(512, 1000, even_nodes(512, 512)), 80u);
  EXPECT_LE(messages(512, 1000, even_nodes(512, 8)), 80u);
  // Where a round waits for long, few rounds; where messages cost, few messages.
  EXPECT_EQ(messages(64, 1000, even_nodes(64, 64), {1, 1e-6, 1e-10}), 63u);
  EXPECT_EQ(messages(64, 1000, even_nodes(64, 64), {1e-6, 1, 1e-10}), 6u);
}

// One owner of everything is the worst case: it collects from all.
TEST(ReduceRounds, NeedTheMemoryOfTwoBucketsWhateverTheRanks) {
  for (const int ranks : {2, 3, 4, 5, 7, 16, 100, 512}) {
    const std::int64_t elements = 1000003;
    BucketLayout even, one, few;
    even.elements = one.elements = few.elements = elements;
    for (int r = 0; r <= ranks; ++r) {
      one.cut.push_back(r <= ranks / 2 ? 0 : elements);
      few.cut.push_back(r < ranks - 1 ? 0 : elements * (r - ranks + 2) / 2);
    }
    for (const int members : {1, 2, 4})
      for (const bool device : {false, true})
        for (const auto& buckets : {std::vector{even}, {one}, {few}, {even, one, few}}) {
          const BucketReduction reduction =
              bucket_reduction(buckets, bulk_levels(even_nodes(ranks, members)), device, 0);
          for (int r = 0; r < ranks; ++r)
            EXPECT_LE(reduction.bytes(r), 2 * sizeof(float) * static_cast<std::size_t>(elements))
                << ranks << " ranks, " << members << " on a node, rank " << r;
        }
  }
}

// A small bucket is exchanged directly, even where its owners have unequal pieces.
TEST(ReduceRounds, AreOneWhereThatTakesLittleMemory) {
  constexpr int ranks = 8;
  BucketLayout some;  // half of it one rank's
  some.elements = 16000;
  some.cut = {0, 8000, 9000, 10000, 11000, 12000, 13000, 14000, 16000};
  const NodeLevels levels = bulk_levels(even_nodes(ranks, 1));
  const BucketReduction small = bucket_reduction({some}, levels, false),
                        tight = bucket_reduction({some}, levels, false, 0);
  EXPECT_EQ(small.rounds[0].levels.size(), 1u);
  EXPECT_EQ(small.rounds[0].chunks, 1);
  EXPECT_GT(tight.rounds[0].levels.size() + static_cast<std::size_t>(tight.rounds[0].chunks), 2u);
  for (int r = 0; r < ranks; ++r) EXPECT_LE(small.bytes(r), 2 * sizeof(float) * small_place_elements);
}

// With what matrices take on their way to tensor-parallel homes.
TEST(ReduceRounds, OfALargeModelOnManyRanksArePlannedInTwoBuckets) {
  for (const auto& [dp, tp] : {std::pair{512, 8}, {128, 8}, {128, 1}}) {
    const Plan plan = make_plan(plan_options(preset("qwen3-32b"), "muon", dp, tp));
    std::size_t largest = 0;
    for (const StagePlan& stage : plan.stages)
      for (const auto* buckets : {&stage.buckets, &stage.scalar_buckets})
        for (const BucketLayout& bucket : *buckets)
          largest = std::max(largest, sizeof(float) * static_cast<std::size_t>(bucket.elements));
    for (const RankMemory& rank : rank_memory(plan, 1))
      ASSERT_LE(rank.size.exchanges, 2 * largest) << dp << " x " << tp;
  }
}

}  // namespace
}  // namespace sestina
