// When replicas are made equal, from counters alone, and the bytes of it.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/base/random.hpp"
#include "parallel/plan/coherence.hpp"
#include "parallel/plan/make_plan.hpp"

namespace sestina {
namespace {

TEST(CoherenceRegistry, WaitsUntilAllRanksHaveSeenTheResultAndTheBudgetIsUsedUp) {
  CoherenceRegistry registry(2, {3, 7});
  EXPECT_FALSE(registry.due(0, 9, 0));  // nothing was sent: nothing can differ
  EXPECT_FALSE(registry.due(0, 12, 10));
  EXPECT_TRUE(registry.due(0, 13, 10));
  registry.synchronised(0, 13);
  EXPECT_EQ(registry.version(0), 1);
  EXPECT_EQ(registry.last(0), 13);
  EXPECT_EQ(registry.version(1), 0);  // each block by itself
  EXPECT_TRUE(registry.due(1, 13, 10));
  EXPECT_FALSE(registry.due(0, 20, 16));  // seven updates: within the budget
  EXPECT_TRUE(registry.due(0, 21, 16));
  EXPECT_FALSE(registry.due(0, 21, 20));  // a newer one is on its way
  registry.equal(0, 21);
  EXPECT_EQ(registry.version(0), 1);
  EXPECT_FALSE(registry.due(0, 28, 22));
}

// With a bound on the drift a budget of zero is none; blocks that are due are not looked at.
TEST(CoherenceRegistry, LooksAtTheDriftOfBlocksThatAreNotDue) {
  CoherenceRegistry drifts(1, {3, 0, 0.1}), both(1, {3, 7, 0.1});
  for (const CoherenceRegistry* registry : {&drifts, &both}) {
    EXPECT_FALSE(registry->looks(0, 9, 0));
    EXPECT_FALSE(registry->looks(0, 6, 4));  // some ranks may not have seen the result
    EXPECT_FALSE(registry->due(0, 7, 4));
    EXPECT_TRUE(registry->looks(0, 7, 4));
  }
  EXPECT_FALSE(drifts.due(0, 20, 16));
  EXPECT_TRUE(drifts.looks(0, 20, 16));
  EXPECT_TRUE(both.due(0, 20, 16));
  EXPECT_FALSE(both.looks(0, 20, 16));
  EXPECT_FALSE(CoherenceRegistry(1, {3, 7}).looks(0, 7, 4));
}

// Three replicas of 1000 weights, of which the last one is 0.02 of their size from the others: 2 / 3 of it from the
// mean. Over 2000 independent sketches the mean of the squares has a standard error of sqrt(2 / 16 / 2000) = 0.8 %;
// their spread, of whose square chi^2(16) has a kurtosis of 3.75, one of 1.9 %. Four of them are allowed.
TEST(DriftSketch, EstimatesTheLargestDistanceFromTheMean) {
  constexpr std::size_t n = 1000, ranks = 3, looks = 2000;
  std::vector<std::vector<float>> weights(ranks, std::vector<float>(n));
  double size = 0, moved = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (auto& w : weights) w[i] = static_cast<float>(normal(1, i));
    weights[2][i] += 0.02f * static_cast<float>(normal(2, i));
    const double mean = (2.0 * weights[0][i] + weights[2][i]) / 3;
    moved += (weights[2][i] - mean) * (weights[2][i] - mean);
    size += (2.0 * weights[0][i] * weights[0][i] + 1.0 * weights[2][i] * weights[2][i]) / 3;
  }
  double sum = 0, squares = 0;
  for (std::size_t look = 0; look < looks; ++look) {
    const std::uint64_t stream = sketch_stream(7, 3, static_cast<std::int64_t>(look));
    std::vector<DriftSketch> sketches(ranks, DriftSketch{});
    for (std::size_t rank = 0; rank < ranks; ++rank) {  // in two pieces
      add_to_sketch(stream, 0, {weights[rank].data(), 360}, sketches[rank]);
      add_to_sketch(stream, 360, {weights[rank].data() + 360, n - 360}, sketches[rank]);
    }
    const double told = estimated_drift(sketches, 1), square = told * told / (moved / size);
    sum += square / looks;
    squares += square * square / looks;
    DriftSketch whole{};
    if (look == 0) add_to_sketch(stream, 0, weights[2], whole);
    if (look == 0) EXPECT_EQ(whole, sketches[2]);
    sketches[2] = sketches[0];
    EXPECT_EQ(estimated_drift(sketches, 1), 0);
  }
  EXPECT_NEAR(sum, 1, 4 * 0.008);
  EXPECT_NEAR(std::sqrt(squares - sum * sum), std::sqrt(2.0 / 16), 4 * 0.019 * std::sqrt(2.0 / 16));
  EXPECT_NE(sketch_stream(7, 3, 1), sketch_stream(7, 4, 1));
  EXPECT_NE(sketch_stream(7, 3, 1), sketch_stream(8, 3, 1));
}

// By hand: two nodes of two. A mean: two ranks to their leaders, one leader to the other, and all of it back. A copy:
// to the mate, to the other leader, and on to its mate. Four ranks tell each of the others eight bytes.
TEST(CoherenceBytes, OfTwoNodesOfTwo) {
  const CoherenceBytes bytes = synchronisation_bytes(1000, 100, even_nodes(4, 2));
  EXPECT_EQ(bytes.sent, 3 * 2 * 1000 + 3 * 100 + 4 * 3 * 8);
  EXPECT_EQ(bytes.between_nodes, 2 * 1000 + 100 + 4 * 2 * 8);
  const CoherenceBytes one = synchronisation_bytes(1000, 100, even_nodes(3, 3));
  EXPECT_EQ(one.sent, 2 * 2 * 1000 + 2 * 100 + 3 * 2 * 8);
  EXPECT_EQ(one.between_nodes, 0);
}

PlanInput replicated(std::int64_t budget) {
  Options o;
  o.model = family_defaults(Family::llama);
  o.model.hidden_size = 48;
  o.model.intermediate_size = 80;
  o.model.num_hidden_layers = 2;
  o.model.num_attention_heads = o.model.num_key_value_heads = 4;
  o.model.head_dim = 12;
  o.model.vocab_size = 300;
  o.data.sequence_length = o.model.max_position_embeddings = 16;
  o.train.global_batch = 8;
  o.train.micro_batch = 1;
  o.optimizer.kind = "soap";
  o.optimizer.matrix = default_options(*find_matrix_kind("soap"));
  o.optimizer.matrix->refresh_every = 10;
  o.optimizer.matrix->refresh_staleness = 5;
  o.optimizer.matrix->refresh_eager = true;
  o.optimizer.refresh.asynchronous = true;
  o.optimizer.refresh.coherence_every = budget;
  o.parallel.dp = 4;
  o.parallel.node_size = 2;
  o.parallel.partition = ParallelOptions::Partition::replicated;
  return {o, 4};
}

// SOAP of (m, n): weights, momentum, factors and their packed copies are averaged; second moment, bases and six
// counters of eight bytes, and two for each side, are copied.
CoherenceBytes soap_bytes(std::int64_t m, std::int64_t n, const NodeLevels& levels) {
  const std::int64_t squares = m * m + n * n, packed = (m * (m + 1) + n * (n + 1)) / 2, counters = 4 + 2 * 2;
  return synchronisation_bytes(4 * (2 * m * n + squares + packed), 4 * (m * n + squares) + 8 * counters, levels);
}

TEST(CoherencePlan, CountsTheStateOfEveryMatrix) {
  const CoherencePlan plan = make_plan(replicated(0)).coherence;
  CoherenceBytes all;
  const auto add = [&](std::int64_t m, std::int64_t n) { all.add(soap_bytes(m, n, even_nodes(4, 2))); };
  for (int layer = 0; layer < 2; ++layer) {
    for (int i = 0; i < 4; ++i) add(48, 48);  // q, k, v, o
    for (int i = 0; i < 2; ++i) add(80, 48);  // gate, up
    add(48, 80);                              // down
  }
  EXPECT_EQ(plan.blocks, 14);
  EXPECT_EQ(plan.synchronisation.sent, all.sent);
  EXPECT_EQ(plan.synchronisation.between_nodes, all.between_nodes);
}

// 16 products and a sum of squares in double of each of 14 blocks, from each of four ranks to three others, two of
// which are on the other node; in the updates 5 to 9 after each job of ten. What drift starts is not known.
TEST(CoherencePlan, CountsLooksAtTheDrift) {
  PlanInput input = replicated(0);
  EXPECT_EQ(make_plan(input).coherence.sketch.sent, 0);
  EXPECT_EQ(make_plan(input).coherence.sketches, 0);
  input.optimizer.refresh.coherence_drift = 0.01;
  const CoherencePlan plan = make_plan(input).coherence;
  EXPECT_EQ(plan.sketch.sent, 14 * 4 * 3 * 17 * 8);
  EXPECT_EQ(plan.sketch.between_nodes, 14 * 4 * 2 * 17 * 8);
  EXPECT_EQ(plan.sketches, 0.5);
  EXPECT_EQ(plan.synchronisations, 0);
  EXPECT_EQ(plan.bytes_per_update(), 0.5 * static_cast<double>(plan.sketch.sent));
  EXPECT_GT(plan.synchronisation.sent, plan.sketch.sent);
  input.optimizer.refresh.coherence_every = 25;
  EXPECT_EQ(make_plan(input).coherence.synchronisations, make_plan(replicated(25)).coherence.synchronisations);
}

// Blocks are synchronised each by itself: of 48 x 48 with max_dim 32, (32, 32), (32, 16), (16, 32) and (16, 16).
TEST(CoherencePlan, CountsBlocksOfMatricesThatAreCut) {
  PlanInput input = replicated(0);
  input.optimizer.matrix->set("max_dim", 32);
  const CoherencePlan plan = make_plan(input).coherence;
  CoherenceBytes all;
  int blocks = 0;
  const auto add = [&](const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& cols) {
    for (const std::int64_t m : rows)
      for (const std::int64_t n : cols) {
        all.add(soap_bytes(m, n, even_nodes(4, 2)));
        ++blocks;
      }
  };
  for (int layer = 0; layer < 2; ++layer) {
    for (int i = 0; i < 4; ++i) add({32, 16}, {32, 16});      // q, k, v, o
    for (int i = 0; i < 2; ++i) add({32, 32, 16}, {32, 16});  // gate, up
    add({32, 16}, {32, 32, 16});                              // down
  }
  EXPECT_EQ(plan.blocks, blocks);
  EXPECT_EQ(plan.synchronisation.sent, all.sent);
  EXPECT_EQ(plan.synchronisation.between_nodes, all.between_nodes);
}

// The same under tensor parallelism, where tp = 2 halves rows of q, k, v, gate and up, and columns of o and down.
// Homes: whole matrices among the homes of the data-parallel ranks, and half of each matrix from each home to the other
// rank, on each of them. Blockwise: halves. Duplicated: whole matrices among all ranks, or those of the owner's group.
TEST(CoherencePlan, CountsReplicasUnderTensorParallelism) {
  using TpUpdate = ParallelOptions::TpUpdate;
  struct Expected {
    TpUpdate tp_update;
    bool replicated;
    int node_size;
    NodeLevels levels;
  };
  for (const Expected& expected :
       {Expected{TpUpdate::home, true, 4, even_nodes(4, 2)}, Expected{TpUpdate::home, true, 1, even_nodes(4, 1)},
        Expected{TpUpdate::blockwise, true, 4, even_nodes(4, 2)},
        Expected{TpUpdate::duplicated, true, 4, even_nodes(8, 4)},
        Expected{TpUpdate::duplicated, false, 4, even_nodes(2, 2)},
        Expected{TpUpdate::duplicated, false, 1, even_nodes(2, 1)}}) {
    PlanInput input = replicated(0);
    input.parallel.tp = 2;
    input.parallel.node_size = expected.node_size;
    input.parallel.tp_update = expected.tp_update;
    if (!expected.replicated) input.parallel.partition = ParallelOptions::Partition::optimal;
    const CoherencePlan plan = make_plan(input).coherence;
    const bool halves = expected.tp_update == TpUpdate::blockwise;
    CoherenceBytes all;
    const auto add = [&](std::int64_t m, std::int64_t n, bool rows) {
      if (!halves) all.add(soap_bytes(m, n, expected.levels));
      for (int rank = 0; halves && rank < 2; ++rank)
        all.add(rows ? soap_bytes(m / 2, n, expected.levels) : soap_bytes(m, n / 2, expected.levels));
      const std::int64_t shards = 4 * 4 * m * n / 2;  // four data-parallel ranks, four bytes
      if (expected.tp_update == TpUpdate::home) all.add({shards, expected.node_size == 1 ? shards : 0});
    };
    for (int layer = 0; layer < 2; ++layer) {
      for (int i = 0; i < 3; ++i) add(48, 48, true);  // q, k, v
      add(48, 48, false);                             // o
      for (int i = 0; i < 2; ++i) add(80, 48, true);  // gate, up
      add(48, 80, false);                             // down
    }
    EXPECT_EQ(plan.blocks, halves ? 28 : 14);
    EXPECT_EQ(plan.synchronisation.sent, all.sent);
    EXPECT_EQ(plan.synchronisation.between_nodes, all.between_nodes);
  }
}

TEST(CoherencePlan, SendsLessWithALargerBudgetAndNothingWhereReplicasDoNotDrift) {
  // Jobs at 10, 20, ... are seen by all at 15, 25, ...: budgets below the period are one; 20 updates after 15 lies in
  // the window of the job of 30, so 36 is the first.
  EXPECT_NEAR(make_plan(replicated(0)).coherence.synchronisations, 0.1, 1e-3);
  EXPECT_NEAR(make_plan(replicated(5)).coherence.synchronisations, 0.1, 1e-3);
  double last = 1;
  for (const std::int64_t budget : {0, 5, 9, 10, 15, 20, 33, 50, 100}) {
    const CoherencePlan plan = make_plan(replicated(budget)).coherence;
    EXPECT_LE(plan.synchronisations, last) << budget;
    EXPECT_LE(plan.synchronisations, 1.0 / static_cast<double>(budget + 1) + 1e-9) << budget;
    EXPECT_GE(plan.synchronisations, 0.99 / static_cast<double>(budget + 10 + 5)) << budget;
    EXPECT_DOUBLE_EQ(plan.bytes_per_update(), plan.synchronisations * static_cast<double>(plan.synchronisation.sent));
    last = plan.synchronisations;
  }
  // However large: jobs are 10 apart, so a block waits for the budget, at most a period, and five updates more.
  for (const std::int64_t budget : {std::int64_t{1000000}, std::int64_t{1000000000}}) {
    const double updates = 1 / make_plan(replicated(budget)).coherence.synchronisations;
    EXPECT_GT(updates, static_cast<double>(budget));
    EXPECT_LE(updates, static_cast<double>(budget + 1 + 10 + 5));
  }
  PlanInput fixed = replicated(0), owned = replicated(0), alone = replicated(0);
  fixed.optimizer.matrix->refresh_eager = false;
  owned.parallel.partition = ParallelOptions::Partition::optimal;
  alone.parallel.dp = 1;
  for (const PlanInput& input : {fixed, owned, alone}) {
    const CoherencePlan plan = make_plan(input).coherence;
    EXPECT_EQ(plan.blocks, 0);
    EXPECT_EQ(plan.synchronisation.sent, 0);
    EXPECT_EQ(plan.bytes_per_update(), 0);
  }
}

}  // namespace
}  // namespace sestina
