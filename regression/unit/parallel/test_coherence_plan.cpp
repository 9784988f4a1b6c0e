// When replicas are made equal, from counters alone, and the bytes of it.
#include <gtest/gtest.h>

#include "parallel/plan/coherence.hpp"
#include "parallel/plan/make_plan.hpp"

namespace sestina {
namespace {

TEST(CoherenceRegistry, WaitsUntilAllRanksHaveSeenTheResultAndTheBudgetIsUsedUp) {
  CoherenceRegistry registry(2, 3, 7);
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
