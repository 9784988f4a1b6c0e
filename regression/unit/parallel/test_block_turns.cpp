// The places in which blocks take turns: no two blocks that are in use at the same time lie in the same memory, places
// are as large as the largest block needs, and weights come as often as passes read a block that another one replaced.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "core/layout/rank_layout.hpp"
#include "parallel/exchange/rank_memory.hpp"
#include "parallel/plan/block_turns.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/plan/shard_layout.hpp"
#include "regression/unit/parallel/plan_rig.hpp"

namespace sestina {
namespace {

using Shard = ParallelOptions::Shard;

Plan sharded_plan(Shard shard, bool tied, int pp = 1, int dp = 4) {
  Options options = plan_options(preset("qwen3-0.6b"), "muon", dp);
  options.model.tie_word_embeddings = tied;
  options.model.num_hidden_layers = 6;
  options.parallel.shard = shard;
  options.parallel.pp = pp;
  options.train.global_batch = 3 * dp;
  options.train.micro_batch = 1;
  return make_plan({options, dp * pp});
}

TEST(BlockTurns, OnlyOneBlockOfAPlaceIsThereUnlessEndsAreTied) {
  for (const bool tied : {false, true}) {
    const Plan plan = sharded_plan(Shard::gradients, tied);
    const StagePlan& stage = plan.stages[0];
    const std::vector<std::int64_t> size = {96, 32, 64, 32, 64, 32, 64, 160};  // embedding, six layers, head
    const TurnLayout turns = lay_out_turns(stage, size);
    EXPECT_EQ(turns.elements, (tied ? 96 + 160 : 160) + 32 + 64);
    for (std::size_t a = 0; a < size.size(); ++a)
      for (std::size_t b = a + 1; b < size.size(); ++b) {
        const bool apart = turns.begin[a] + size[a] <= turns.begin[b] || turns.begin[b] + size[b] <= turns.begin[a];
        const bool ends = a == 0 && b == 7, neighbours = b == a + 1;
        if (neighbours || (ends && tied)) EXPECT_TRUE(apart) << a << " and " << b;
        if (ends && !tied) EXPECT_FALSE(apart);
      }
  }
}

TEST(BlockTurns, BucketsAreBlocksAndWhatIsOwnedLiesAfterThePlaces) {
  const Plan plan = sharded_plan(Shard::gradients, true);
  const StagePlan& stage = plan.stages[0];
  const GradientBuckets all = gradient_buckets(stage, plan.input.parallel);
  for (const BucketLayout& bucket : all.buckets)
    for (const int spec : bucket.specs) EXPECT_EQ(stage.specs[at(spec)].block, bucket.block);
  for (int rank = 0; rank < plan.dp; ++rank) {
    const RankLayout layout = shard_layout(stage, all, plan.input, rank, 0);
    std::vector<std::pair<std::size_t, std::size_t>> owned;  // first element, and one after the last
    for (const TensorHolding& tensor : layout.tensors)
      if (tensor.owned_elements() > 0)
        owned.emplace_back(tensor.sum_offset, tensor.sum_offset + tensor.owned_elements());
    std::sort(owned.begin(), owned.end());
    EXPECT_GE(owned.front().first, static_cast<std::size_t>(all.begin.back()));
    EXPECT_LE(owned.back().second, layout.gradient_elements);
    for (std::size_t i = 1; i < owned.size(); ++i) EXPECT_LE(owned[i - 1].second, owned[i].first);
  }
}

// Six layers of three micro-batches, one forward and one backward pass each: after a forward pass the last two layers
// are in their places, after a backward pass the first two.
TEST(BlockTurns, WeightsComeWhenTheirBlockIsNotInItsPlace) {
  for (const bool tied : {false, true}) {
    const Plan plan = sharded_plan(Shard::weights, tied);
    const std::vector<std::int64_t> count = gathers_of_step(plan.stages[0], plan.schedule.ranks[0], 0);
    const std::int64_t ends = tied ? 1 : 3;
    EXPECT_EQ(count, (std::vector<std::int64_t>{ends, 1 + 3, 1 + 3, 6, 6, 3, 3, ends}));
  }
}

// A rank keeps its part of state and gradients, and in addition the places of a few blocks.
TEST(BlockTurns, TakeLessMemory) {
  const auto largest = [](Shard shard) {
    std::size_t gradients = 0, weights = 0;
    for (const RankMemory& memory : rank_memory(sharded_plan(shard, false, 1, 8), 1)) {
      gradients = std::max(gradients, memory.size.gradients);
      weights = std::max(weights, memory.size.weights + memory.size.master);
    }
    return std::pair(gradients, weights);
  };
  const auto state = largest(Shard::state), gradients = largest(Shard::gradients), weights = largest(Shard::weights);
  EXPECT_LT(static_cast<double>(gradients.first), 0.75 * static_cast<double>(state.first));
  EXPECT_EQ(gradients.second, state.second);
  EXPECT_EQ(weights.first, gradients.first);
  EXPECT_LT(static_cast<double>(weights.second), 0.75 * static_cast<double>(state.second));
}

TEST(BlockTurns, RanksTakeMicroBatchesInTurn) {
  const Plan plan = sharded_plan(Shard::gradients, false);
  std::vector<int> taken(12, 0);
  for (int rank = 0; rank < plan.dp; ++rank) {
    const BatchShare share = batch_share(plan.input, rank);
    ASSERT_EQ(share.count, 3);
    for (int micro = 0; micro < share.count; ++micro) {
      EXPECT_EQ(share.number(micro), micro * plan.dp + rank);
      ++taken[at(share.number(micro))];
    }
  }
  EXPECT_EQ(taken, std::vector<int>(12, 1));
}

}  // namespace
}  // namespace sestina
