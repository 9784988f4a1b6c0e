// The published partitions on cases small enough to follow by hand, buckets, layouts, cuts at rows, micro-groups.
#include <gtest/gtest.h>

#include "parallel/plan/plan_assign.hpp"
#include "parallel/plan/plan_cost.hpp"
#include "parallel/plan/shard_layout.hpp"
#include "plan_rig.hpp"

namespace sestina {
namespace {

using Owners = std::vector<int>;

std::vector<PartitionItem> items_of(const std::vector<std::int64_t>& elements) {
  std::vector<PartitionItem> items;
  for (const std::int64_t n : elements) items.push_back({n, n, static_cast<int>(items.size())});
  return items;
}

TEST(PlanCost, FollowsTheStatedFormulas) {
  EXPECT_EQ(update_flops("muon", 3, 2), 5 * (4 * 3 * 4 + 2 * 8));
  EXPECT_EQ(update_flops("adamuon", 2, 3), update_flops("muon", 3, 2));
  EXPECT_DOUBLE_EQ(update_flops("soap", 3, 2), 8 * 9 * 2 + 22.0 / 3 * 27 / 10 + 8 * 4 * 3 + 22.0 / 3 * 8 / 10);
  EXPECT_DOUBLE_EQ(update_flops("shampoo", 3, 2), 4 * 9 * 2 + 1.1 * 27 + 4 * 4 * 3 + 1.1 * 8);
  EXPECT_DOUBLE_EQ(update_flops("soap", 10001, 2), 8 * 4 * 10001.0 + 22.0 / 3 * 8 / 10);  // a long side has no factor
  EXPECT_EQ(update_flops("galore", 3, 2), 6);
  TensorSpec heads{"q", 8, 4};
  heads.heads = 2;
  OptimizerOptions optimizer = plan_options(preset("llama-8m"), "muon", 1).optimizer;
  EXPECT_EQ(tensor_cost(heads, optimizer, ParallelOptions::Cost::flops, {}), update_flops("muon", 8, 4));
  optimizer.per_head = true;
  EXPECT_EQ(tensor_cost(heads, optimizer, ParallelOptions::Cost::flops, {}), 2 * update_flops("muon", 4, 4));
  EXPECT_EQ(tensor_cost(heads, optimizer, ParallelOptions::Cost::elements, {}), 32);
}

// A matrix that is cut costs what its blocks cost: FLOPs, seconds, work of its refreshes.
TEST(PlanCost, OfACutMatrixIsThatOfItsBlocks) {
  const TensorSpec spec{"w", 70, 45};
  for (const std::string kind : {"soap", "kl-soap", "kl-shampoo", "basis-rotation"}) {
    OptimizerOptions optimizer = plan_options(preset("llama-8m"), kind, 1).optimizer;
    const MachineOptions machine{.peak_tflops = 1e-3, .memory_bandwidth = 1e12};
    const std::int64_t whole = tensor_cost(spec, optimizer, ParallelOptions::Cost::seconds, machine);
    optimizer.matrix->set("max_dim", 32);
    double flops = 0, seconds = 0;
    for (const std::int64_t rows : {32, 32, 6})
      for (const std::int64_t cols : {32, 13}) {
        flops += update_flops(kind, rows, cols);
        seconds += update_seconds(*optimizer.matrix, rows, cols, machine);
      }
    EXPECT_NEAR(static_cast<double>(tensor_cost(spec, optimizer, ParallelOptions::Cost::flops, {})), flops, 3) << kind;
    const std::int64_t cut = tensor_cost(spec, optimizer, ParallelOptions::Cost::seconds, machine);
    EXPECT_NEAR(static_cast<double>(cut), 1e9 * seconds, 6) << kind;
    EXPECT_LT(cut, whole) << kind;
    EXPECT_EQ(tensor_cost(spec, optimizer, ParallelOptions::Cost::elements, {}), 70 * 45) << kind;
  }
}

// What is executed: the deck's own iterations, refresh period and largest dim count.
TEST(PlanCost, SecondsFollowTheOptionsOfTheDeck) {
  const MachineOptions machine{.peak_tflops = 1e-3, .memory_bandwidth = 1e12};  // products alone count
  const auto seconds = [&](const char* name, auto change) {
    MatrixOptions options = default_options(*find_matrix_kind(name));
    change(options);
    return update_seconds(options, 96, 64, machine);
  };
  const auto as_is = [](MatrixOptions&) {};
  const auto steps = [](double n) { return [n](MatrixOptions& options) { options.set("ns_steps", n); }; };
  EXPECT_NEAR(seconds("muon", steps(10)) / seconds("muon", steps(5)), 2, 1e-6);
  for (const char* name : {"soap", "shampoo", "kl-shampoo", "kl-soap", "basis-rotation", "galore"})
    EXPECT_GT(seconds(name, [](MatrixOptions& options) { options.refresh_every = 1; }), 1.2 * seconds(name, as_is))
        << name;
  EXPECT_LT(seconds("shampoo", [](MatrixOptions& options) { options.set("max_dim", 32); }), seconds("shampoo", as_is));
  EXPECT_GT(seconds("apollo", [](MatrixOptions& options) { options.set("rank", 64); }), seconds("apollo", as_is));
}

// Rows of the table are full: plans and checks ask them, and nobody else.
TEST(PlanCost, EveryKindSaysWhatItExecutes) {
  for (const MatrixKind& kind : matrix_kinds()) {
    if (kind.name == "adam") {  // passes over memory alone
      EXPECT_EQ(kind.work, nullptr);
      continue;
    }
    ASSERT_NE(kind.work, nullptr) << kind.name;
    EXPECT_GT(kind.work(default_options(kind), 48, 32).update, 0) << kind.name;
    EXPECT_EQ(kind.work(default_options(kind), 48, 32).refresh > 0, kind.refresh_every > 0 && kind.name != "apollo")
        << kind.name;
  }
  EXPECT_EQ(shardable_kinds(), (std::vector<std::string>{"muon", "normuon", "adamuon"}));
}

TEST(PlanPartition, BucketsCloseWhenFullOrAtBlocks) {
  std::vector<PartitionItem> items = items_of({4, 4, 4, 4, 4});
  EXPECT_EQ(fill_buckets(items, 8, false), (Buckets{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(fill_buckets(items, 1, false).size(), 5u);
  items[2].block = items[1].block;  // items 1 and 2 get ready together
  EXPECT_EQ(fill_buckets(items, 8, true), (Buckets{{0, 1, 2}, {3, 4}}));
  EXPECT_TRUE(fill_buckets({}, 8, true).empty());
  EXPECT_EQ(usual_bucket(items, 1), 4);
  EXPECT_EQ(usual_bucket(items, 3), 5);  // a quarter
}

TEST(PlanPartition, StartIndexCutsEvenly) {
  // 24 elements over 3 ranks: cuts at 8 and 16; items start at 0, 10, 12, 14, 16.
  const auto items = items_of({10, 2, 2, 2, 8});
  EXPECT_EQ(start_index_owners(items, {{0, 1, 2, 3, 4}}, 3), (Owners{0, 1, 1, 1, 2}));
  EXPECT_EQ(start_index_owners(items, {{0, 1, 2, 3, 4}}, 1), (Owners{0, 0, 0, 0, 0}));
}

TEST(PlanPartition, BalancedMovesCutsToItemEnds) {
  // Even cuts at 8 and 16 of 24 leave loads of 10, 6, 8; the item ends nearest to them, 7 and 16, loads of 7, 9, 8.
  const auto items = items_of({7, 3, 6, 8});
  EXPECT_EQ(start_index_owners(items, {{0, 1, 2, 3}}, 3), (Owners{0, 0, 1, 2}));
  EXPECT_EQ(balanced_owners(items, {{0, 1, 2, 3}}, 3, 1), (Owners{0, 1, 1, 2}));
  // The heavier bucket goes first and leaves rank 0 ahead, so the other gives it nothing.
  const auto uneven = items_of({8, 2, 2, 2, 2});
  const Buckets two = {{0, 1}, {2, 3, 4}};
  EXPECT_EQ(start_index_owners(uneven, two, 2), (Owners{0, 1, 0, 0, 1}));
  EXPECT_EQ(balanced_owners(uneven, two, 2, 1), (Owners{0, 1, 1, 1, 1}));
  EXPECT_EQ(balanced_owners(uneven, two, 2, 0), (Owners{0, 1, 0, 1, 1}));  // alpha 0: even shards in each bucket
}

TEST(PlanPartition, LayerwiseKeepsToItsShareOfABucket) {
  const auto items = items_of({4, 4, 4, 4, 8, 8});
  const Buckets two = {{0, 1, 2, 3}, {4, 5}};
  EXPECT_EQ(layerwise_owners(items, two, 2), (Owners{0, 1, 0, 1, 0, 1}));
  // What is larger than any share goes where the bucket is emptiest.
  EXPECT_EQ(layerwise_owners(items_of({10, 1, 1}), {{0, 1, 2}}, 2), (Owners{0, 1, 1}));
  EXPECT_EQ(layerwise_owners(items_of({3}), {{0}}, 5), (Owners{0}));
}

// Specs of one block each.
std::vector<TensorSpec> specs_of(const std::vector<std::pair<std::int64_t, std::int64_t>>& shapes) {
  std::vector<TensorSpec> specs;
  for (const auto& [rows, cols] : shapes) {
    TensorSpec spec{fmt::format("t{}", specs.size()), rows, cols};
    spec.block = static_cast<int>(specs.size());
    specs.push_back(spec);
  }
  return specs;
}

TEST(PlanLayout, EveryShardIsOneInterval) {
  const auto specs = specs_of({{32, 1}, {64, 1}, {10, 10}, {32, 3}});
  const Owners owner = {2, 0, 2, 0};
  const auto layout = matrix_buckets(specs, owner, {{3, 2, 1, 0}}, 4).at(0);
  EXPECT_EQ(layout.specs, (std::vector<int>{3, 1, 2, 0}));
  EXPECT_EQ(layout.offset, (std::vector<std::int64_t>{0, 96, 160, 288}));  // 100 elements take 128
  EXPECT_EQ(layout.cut, (std::vector<std::int64_t>{0, 160, 160, 320, 320}));
  EXPECT_EQ(layout.elements, 320);
  EXPECT_EQ(layout.block, 0);
}

// Sums over a tensor are taken by chunks of rows: cuts fall between these, so that no cut changes a sum.
TEST(PlanLayout, ChunksOfRowsAreCutEvenlyAndNeverInside) {
  const auto specs = specs_of({{1000, 64}, {100, 1}});  // 64000 (chunks of 64 rows) + 100, with its gap 128
  for (const int dp : {1, 2, 3, 7, 500}) {
    const auto layout = row_buckets(specs, {{1, 0}}, dp).at(0);
    ASSERT_EQ(layout.cut.size(), static_cast<std::size_t>(dp) + 1);
    EXPECT_EQ(layout.cut.front(), 0);
    EXPECT_EQ(layout.cut.back(), layout.elements);
    EXPECT_EQ(layout.elements, 64128);
    for (std::size_t r = 0; r < static_cast<std::size_t>(dp); ++r) {
      EXPECT_LE(layout.cut[r], layout.cut[r + 1]);
      EXPECT_TRUE(layout.cut[r] == 0 || (layout.cut[r] - 128) % 4096 == 0 || layout.cut[r] == 64128) << "in a chunk";
      EXPECT_LE(layout.cut[r + 1] - layout.cut[r], 64128 / dp + 4096) << "uneven by more than a chunk";
    }
  }
}

TEST(PlanHomes, GroupsOfHomesHaveEvenBytes) {
  const auto rank = group_homes({8, 1, 7, 2, 6, 3}, 3, 2);
  std::vector<std::int64_t> load(3, 0);
  const std::vector<std::int64_t> bytes = {8, 1, 7, 2, 6, 3};
  for (std::size_t home = 0; home < 6; ++home) load.at(static_cast<std::size_t>(rank[home] / 2)) += bytes[home];
  EXPECT_EQ(load, (std::vector<std::int64_t>{9, 9, 9}));
  EXPECT_EQ(std::set<int>(rank.begin(), rank.end()).size(), 6u);
}

TEST(PlanHomes, MicroGroupsHoldToTheirBytes) {
  const std::vector<HomedMatrix> matrices = {{0, 0, 10, 4}, {1, 1, 10, 4}, {2, 0, 5, 2}, {3, 1, 5, 2}, {4, 0, 1, 2}};
  const auto all = micro_groups(matrices, 2, 1000);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].bytes, 8);
  const auto some = micro_groups(matrices, 2, 4);
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(some[0].specs, (std::vector<int>{0, 1}));
  EXPECT_EQ(some[1].specs, (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(micro_groups(matrices, 2, 1).size(), 2u);  // never below the largest matrix
  EXPECT_TRUE(micro_groups({}, 2, 1).empty());
}

TEST(TensorShard, ShardsAreTheWhole) {
  for (const char* name : {"qwen3-32b", "olmo2-1b", "llama-60m"})
    for (const int tp : {1, 2, 8, 16}) {
      ModelConfig model = preset(name);
      if (!tensor_parallel_defects(model, tp).empty()) continue;
      for (const TensorSpec& spec : tensor_specs(model, {0, 1})) {
        std::int64_t sum = 0;
        for (int rank = 0; rank < tp; ++rank) sum += local_spec(spec, model, tp, rank).elements();
        const std::int64_t copies = tensor_shard(spec, model, tp, 0).cut == TensorShard::Cut::none ? tp
                                    : spec.heads > 0 && spec.heads < tp                            ? tp / spec.heads
                                                                                                   : 1;
        EXPECT_EQ(sum, copies * spec.elements()) << spec.name << " of " << name << ", tp " << tp;
        EXPECT_TRUE(tp == 1 || spec.is_vector() || copies < tp) << spec.name << " is on every rank";
      }
    }
}

}  // namespace
}  // namespace sestina
