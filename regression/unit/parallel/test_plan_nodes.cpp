// Bytes between nodes, counted here message by message.
#include <gtest/gtest.h>

// What one step sends from node to node.
#include "parallel/exchange/traffic.hpp"
#include "plan_rig.hpp"

namespace sestina {
namespace {

Options nodes_of(int dp, int tp, int node_size) {
  Options options = plan_options(preset("llama-8m"), "muon", dp, tp);
  options.parallel.node_size = node_size;
  return options;
}

// One byte for each rank of a group, from everyone to everyone: how many go from one node to another.
int crossing_pairs(int size, int members) {
  int pairs = 0;
  for (int from = 0; from < size; ++from)
    for (int to = 0; to < size; ++to) pairs += from / members != to / members ? 1 : 0;
  return pairs;
}

double bytes_of(const char* operation, const char* group, const char* what, std::int64_t bytes,
                const Options& options) {
  return between_nodes_bytes({operation, group, what, 1, bytes}, options).value();
}

TEST(PlanNodes, BulkDataCrossesOnceForEachOtherNode) {
  EXPECT_EQ(bytes_of("all_gather", "dp", "weights", 800, nodes_of(8, 1, 2)), 3 * 800);
  EXPECT_EQ(bytes_of("reduce_scatter", "dp", "gradients", 800, nodes_of(8, 1, 4)), 800);
  EXPECT_EQ(bytes_of("reduce_scatter", "dp", "gradients", 800, nodes_of(8, 1, 8)), 0);
  EXPECT_EQ(bytes_of("all_gather", "dp", "weights", 700, nodes_of(7, 1, 4)), 700);  // four and three
}

TEST(PlanNodes, WithoutLevelsThatContinueTheTreeEveryPairExchanges) {
  EXPECT_EQ(bytes_of("all_gather", "dp", "weights", 600, nodes_of(6, 1, 3)), 100 * crossing_pairs(6, 3));
}

TEST(PlanNodes, TensorParallelRanksLieOnOneNodeWhereItHasRoom) {
  EXPECT_EQ(bytes_of("all_reduce", "tp", "activations", 800, nodes_of(4, 2, 4)), 0);
  EXPECT_EQ(bytes_of("all_gather", "dp", "weights", 800, nodes_of(4, 2, 4)), 2 * 800);  // two groups over two nodes
  EXPECT_EQ(bytes_of("all_reduce", "tp", "activations", 800, nodes_of(1, 8, 4)), 2 * 100 * crossing_pairs(8, 4));
}

// Every tensor-parallel rank sends the rows of its part of the experts.
TEST(PlanNodes, TokensGoToEachPartOfTheirExperts) {
  Options whole = nodes_of(4, 1, 2), halves = nodes_of(4, 2, 4);
  whole.parallel.ep = halves.parallel.ep = 4;
  EXPECT_EQ(bytes_of("all_to_all", "experts", "tokens", 1600, whole), 1600 / 16 * crossing_pairs(4, 2));
  EXPECT_EQ(bytes_of("all_to_all", "experts", "tokens", 1600, halves), 2 * 1600 / 16 * crossing_pairs(4, 2));
  whole.parallel.ep = halves.parallel.ep = 2;  // holders are every other rank
  EXPECT_GT(bytes_of("all_gather", "holders", "expert weights", 800, whole), 0);
  EXPECT_EQ(bytes_of("all_gather", "holders", "expert weights", 800, halves),
            2 * bytes_of("all_gather", "holders", "expert weights", 800, whole));
}

TEST(PlanNodes, AreNotKnownWithoutTheirSize) {
  for (const Collective& collective : collectives(make_plan(nodes_of(8, 2, 0))))
    EXPECT_FALSE(between_nodes_bytes(collective, nodes_of(8, 2, 0)).has_value());
  for (const Collective& collective : collectives(make_plan(nodes_of(8, 2, 4))))
    EXPECT_GE(between_nodes_bytes(collective, nodes_of(8, 2, 4)).value(), 0) << collective.what;
}

}  // namespace
}  // namespace sestina
