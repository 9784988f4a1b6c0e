// Whole plans: legal under every strategy, as good as is proven possible for the models people train, and the published
// figures of the Canzona paper.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>

#include "core/deck/deck.hpp"
#include "core/layout/tensor_spec.hpp"
#include "parallel/exchange/rank_memory.hpp"
#include "parallel/exchange/traffic.hpp"
#include "parallel/plan/plan_reading.hpp"
#include "plan_rig.hpp"
#include "sestina_test_paths.hpp"

namespace sestina {
namespace {

using Partition = ParallelOptions::Partition;
constexpr Partition partitions[] = {Partition::optimal, Partition::balanced, Partition::layerwise,
                                    Partition::start_index, Partition::replicated};
constexpr const char* kinds[] = {"muon", "soap", "shampoo"};

// Each spec in one bucket, once; each rank's tensors side by side and inside its cuts.
void expect_legal(const Plan& plan) {
  for (const StagePlan& stage : plan.stages) {
    std::map<int, int> seen;
    for (const BucketLayout& bucket : stage.buckets) {
      const bool replicated = bucket.cut.empty();
      for (std::size_t i = 0; i < bucket.specs.size(); ++i) {
        const int spec = bucket.specs[i], owner = stage.owner.at(static_cast<std::size_t>(spec));
        ++seen[spec];
        if (replicated) {
          EXPECT_EQ(owner, every_rank);
          continue;
        }
        ASSERT_GE(owner, 0);
        ASSERT_LT(owner, plan.dp);
        const auto rank = static_cast<std::size_t>(owner);
        EXPECT_GE(bucket.offset[i], bucket.cut[rank]);
        EXPECT_LT(bucket.offset[i], bucket.cut[rank + 1]);
        const std::int64_t end = i + 1 < bucket.specs.size() ? bucket.offset[i + 1] : bucket.elements;
        EXPECT_LE(end, bucket.cut[rank + 1]) << "a shard of two pieces";
      }
      EXPECT_TRUE(replicated || bucket.cut.size() == static_cast<std::size_t>(plan.dp) + 1);
    }
    for (const BucketLayout& bucket : stage.scalar_buckets)
      for (const int spec : bucket.specs) {
        ++seen[spec];
        EXPECT_EQ(stage.owner.at(static_cast<std::size_t>(spec)), scalar_tensor);
      }
    ASSERT_EQ(seen.size(), stage.specs.size());
    for (const auto& [spec, times] : seen) EXPECT_EQ(times, 1) << stage.specs[static_cast<std::size_t>(spec)].name;
  }
}

TEST(MakePlan, EveryStrategyIsLegal) {
  for (const Partition partition : partitions)
    for (const auto& [dp, tp, pp] : {std::array{1, 1, 1}, {3, 1, 1}, {4, 2, 1}, {50, 1, 1}, {2, 4, 3}, {1, 8, 1}}) {
      Options options = plan_options(small_model(), "muon", dp, tp);
      options.parallel.pp = pp;
      options.parallel.partition = partition;
      const Plan plan = make_plan(options);
      expect_legal(plan);
      ASSERT_EQ(plan.stages.size(), static_cast<std::size_t>(pp));
      for (const StagePlan& stage : plan.stages)
        for (std::size_t i = 0; i < stage.specs.size(); ++i) {
          EXPECT_EQ(stage.owner[i] == scalar_tensor, stage.specs[i].role != Role::matrix);
          if (stage.owner[i] == scalar_tensor) continue;
          EXPECT_GE(stage.home[i], 0);
          EXPECT_LT(stage.home[i], tp);
        }
      EXPECT_GE(plan.dp_cost.ratio, plan.dp_cost.bound - 1e-12);
      EXPECT_GE(plan.home_cost.ratio, plan.home_cost.bound - 1e-12);
    }
}

TEST(MakePlan, RatiosAreThoseOfTheOwners) {
  for (const Partition partition : partitions) {
    Options options = plan_options(preset("qwen3-0.6b"), "soap", 24);
    options.parallel.partition = partition;
    const Plan plan = make_plan(options);
    EXPECT_NEAR(plan.dp_cost.ratio, partition == Partition::replicated ? 1 : dp_ratio(plan.stages[0], 24), 1e-12);
  }
}

TEST(MakePlan, OneRankOwnsAll) {
  const Plan plan = make_plan(plan_options(small_model(), "shampoo", 1));
  expect_legal(plan);
  EXPECT_EQ(plan.dp_cost.ratio, 1);
  EXPECT_EQ(plan.dp_cost.bound, 1);
  EXPECT_EQ(plan.home_cost.ratio, 1);
  EXPECT_TRUE(collectives(plan).empty());
}

TEST(MakePlan, WithoutMatricesAllIsCutAtRows) {
  const Plan plan = make_plan(plan_options(small_model(), "adamw", 5, 2));
  expect_legal(plan);
  EXPECT_TRUE(plan.stages[0].buckets.empty());
  EXPECT_EQ(plan.dp_cost.ratio, 1);
  EXPECT_EQ(plan.home_cost.ratio, 1);
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = 0;
  for (const BucketLayout& bucket : plan.stages[0].scalar_buckets)
    for (std::size_t r = 0; r < 5; ++r) {
      least = std::min(least, bucket.cut[r + 1] - bucket.cut[r]);
      most = std::max(most, bucket.cut[r + 1] - bucket.cut[r]);
    }
  EXPECT_GT(least, 0);
  EXPECT_LE(most, 2 * least);
}

TEST(MakePlan, OptimalReachesItsBoundAndBeatsTheOthers) {
  for (const char* model : {"qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b"})
    for (const char* kind : kinds)
      for (const int dp : {8, 32, 64, 128})
        for (const int tp : {1, 8}) {
          Options options = plan_options(preset(model), kind, dp, tp);
          const Plan best = make_plan(options);
          const LoadRatio& bound_by = tp == 1 ? best.dp_cost : best.home_cost;
          EXPECT_LE(bound_by.gap(), 1e-3) << model << " " << kind << " " << dp << " x " << tp;
          for (const Partition other : {Partition::balanced, Partition::layerwise, Partition::start_index}) {
            options.parallel.partition = other;
            const Plan plan = make_plan(options);
            const LoadRatio& load = tp == 1 ? plan.dp_cost : plan.home_cost;
            EXPECT_LE(bound_by.ratio, load.ratio * (1 + 1e-6)) << model << " " << kind << " " << dp << " x " << tp;
            EXPECT_NEAR(load.bound, bound_by.bound, 1e-12) << "the bound hangs on the strategy";
          }
        }
}

// At equal load nobody receives more than with the layout that is made for it: of all buckets, and where ranks are not
// made of homes of each bucket too.
TEST(MakePlan, OptimalReceivesNoMoreThanLayerwise) {
  for (const char* model : {"qwen3-1.7b", "qwen3-8b", "qwen3-32b"})
    for (const char* kind : kinds)
      for (const auto& [dp, tp] : {std::pair(8, 1), {64, 1}, {128, 1}, {32, 8}, {512, 8}}) {
        Options options = plan_options(preset(model), kind, dp, tp);
        const Plan best = make_plan(options);
        const std::string what = fmt::format("{} {} {} x {}", model, kind, dp, tp);
        EXPECT_GE(best.dp_received.gap(), -1e-12) << what;
        options.parallel.partition = Partition::layerwise;
        const Plan other = make_plan(options);
        const LoadRatio &load = tp == 1 ? best.dp_cost : best.home_cost,
                        &others = tp == 1 ? other.dp_cost : other.home_cost;
        if (others.ratio > load.ratio * (1 + 1e-6)) continue;  // not at equal load
        if (tp == 1) {
          EXPECT_LE(best.dp_received.ratio, other.dp_received.ratio * (1 + 1e-3)) << what;
        }
        EXPECT_LE(best.dp_elements.ratio, other.dp_elements.ratio * (1 + 1e-3)) << what;
      }
}

// 32 x 8: homes have one matrix or a few, and while they work on the first ones the others travel.
TEST(MakePlan, MicroGroupsHideTheirExchanges) {
  for (const auto& [model, dp, least] :
       {std::tuple("qwen3-32b", 32, std::size_t{2}), {"qwen3-32b", 4, 4}, {"qwen3-0.6b", 4, 3}}) {
    const Options options = plan_options(preset(model), "muon", dp, 8);
    const StagePlan stage = make_plan(options).stages[0];
    for (const auto& groups : stage.micro_groups) {
      EXPECT_GE(groups.size(), least) << model << ", dp " << dp;
      std::set<int> homes, first;
      for (const MicroGroup& group : groups)
        for (const int spec : group.specs) homes.insert(stage.home[at(spec)]);
      for (const int spec : groups[0].specs) first.insert(stage.home[at(spec)]);
      EXPECT_EQ(first, homes) << "every home has work while the second group travels";
    }
  }
  Options small = plan_options(small_model(), "muon", 1, 2);
  small.model.num_hidden_layers = 1;
  EXPECT_EQ(make_plan(small).stages[0].micro_groups[0].size(), 1u) << "messages would cost more than they hide";
}

TEST(MakePlan, BalancedIsNoWorseThanStartIndex) {
  for (const char* model : {"qwen3-1.7b", "qwen3-32b", "olmo2-7b"})
    for (const char* kind : kinds) {
      Options options = plan_options(preset(model), kind, 32);
      options.parallel.partition = Partition::balanced;
      const double balanced = make_plan(options).dp_cost.ratio;
      options.parallel.partition = Partition::start_index;
      EXPECT_LE(balanced, make_plan(options).dp_cost.ratio);
    }
}

TEST(MakePlan, MicroGroupsHoldEveryMatrixOfTheirRankOnce) {
  Options options = plan_options(preset("qwen3-0.6b"), "muon", 4, 8);
  options.parallel.micro_group_bytes = 100 << 20;
  const Plan plan = make_plan(options);
  const StagePlan& stage = plan.stages[0];
  ASSERT_EQ(stage.micro_groups.size(), 4u);
  std::set<int> seen;
  for (int rank = 0; rank < 4; ++rank)
    for (const MicroGroup& group : stage.micro_groups[static_cast<std::size_t>(rank)]) {
      EXPECT_LE(group.bytes, options.parallel.micro_group_bytes);
      for (const int spec : group.specs) {
        EXPECT_EQ(stage.owner[static_cast<std::size_t>(spec)], rank);
        EXPECT_TRUE(seen.insert(spec).second);
      }
    }
  EXPECT_EQ(seen.size(), 7u * 28);
}

TEST(MakePlan, UpdatesUnderTensorParallelismCostWhatTheyAre) {
  Options options = plan_options(small_model(), "muon", 2, 4);
  const auto total = [&](ParallelOptions::TpUpdate update) {
    options.parallel.tp_update = update;
    const auto cost = make_plan(options).stages[0].rank_cost;
    return std::accumulate(cost.begin(), cost.end(), 0.0);
  };
  using TpUpdate = ParallelOptions::TpUpdate;
  const double home = total(TpUpdate::home);
  EXPECT_DOUBLE_EQ(total(TpUpdate::duplicated), 4 * home);
  EXPECT_GT(total(TpUpdate::distributed), home);  // whole sides on every rank, see test_plan_loads.cpp
  EXPECT_LT(total(TpUpdate::blockwise), home);
}

TEST(MakePlan, BucketsOfAllTensorParallelRanksHoldTheSameTensors) {
  Options options = plan_options(preset("olmo2-1b"), "muon", 3, 3);
  options.model.num_attention_heads = options.model.num_key_value_heads = 3;  // so that rows do not divide
  StagePlan first = make_plan(options).stages[0];
  StagePlan last = first;
  lay_out_buckets(last, options, 2);
  ASSERT_EQ(first.scalar_buckets.size(), last.scalar_buckets.size());
  for (std::size_t i = 0; i < first.buckets.size(); ++i) EXPECT_EQ(first.buckets[i].specs, last.buckets[i].specs);
  EXPECT_NE(first.scalar_buckets[0].elements, last.scalar_buckets[0].elements);  // the vocabulary has no even third
}

TEST(MakePlan, MemoryOfOneRankIsTheModelsOwn) {
  for (const bool bf16 : {false, true}) {
    Options options = plan_options(small_model(), "adamw", 1);
    options.train.precision = bf16 ? TrainOptions::Precision::bf16 : TrainOptions::Precision::fp32;
    const StorageWidth width = bf16 ? width_bf16 : width_fp32;
    const auto specs = tensor_specs(options.model);
    const std::size_t state = static_cast<std::size_t>(parameter_count(options.model)) * 8;
    const ModelSize size = model_size(options.model, all_layers(options.model), 8, 128, width, false, state);
    const auto memory = rank_memory(make_plan(options), 1);
    ASSERT_EQ(memory.size(), 1u);
    EXPECT_EQ(memory[0].size.weights, size.weights);
    EXPECT_EQ(memory[0].size.master, size.master);
    EXPECT_EQ(memory[0].size.gradients, size.gradients);
    EXPECT_EQ(memory[0].size.optimizer, size.optimizer);
    EXPECT_GT(memory[0].size.workspace, size.workspace);  // kernels take some for themselves
    EXPECT_EQ(memory[0].size.exchanges, 0u);
    EXPECT_EQ(memory[0].size.parameters, size.parameters);
    EXPECT_EQ(memory[0].checkpoint, size.master + size.optimizer);
  }
}

TEST(MakePlan, StateIsKeptOnce) {
  Options options = plan_options(small_model(), "adamw", 4);
  options.train.precision = TrainOptions::Precision::bf16;
  std::int64_t elements = 0;
  for (const RankMemory& memory : rank_memory(make_plan(options), 1)) elements += memory.scalar_elements;
  const std::int64_t parameters = parameter_count(options.model);
  EXPECT_GE(elements, parameters);
  EXPECT_LT(elements, parameters + 32 * 40);  // gaps of the buckets
}

TEST(MakePlan, SendsEachGradientOnce) {
  Options options = plan_options(small_model(), "muon", 4);
  options.train.precision = TrainOptions::Precision::bf16;
  const Plan plan = make_plan(options);
  std::int64_t gradients = 0, weights = 0, computed = 0;
  for (const TensorSpec& spec : plan.stages[0].specs) computed += spec.elements() * (spec.is_vector() ? 4 : 2);
  for (const Collective& collective : collectives(plan)) {
    if (collective.what == "gradients") gradients += collective.bytes;
    if (collective.what == "weights") weights += collective.bytes;
    EXPECT_LT(sent_bytes(collective, plan), static_cast<double>(collective.bytes) * 2);
  }
  EXPECT_GE(gradients, 4 * parameter_count(options.model));
  EXPECT_LT(gradients, 4 * parameter_count(options.model) + 4 * 32 * 40);
  EXPECT_EQ(weights, computed);
}

// The norm and a Gram matrix over the cut side for each step: q, k, v, gate, up by rows, o and down by columns.
TEST(MakePlan, DistributedProductsAreSummedOnceForEachStep) {
  Options options = plan_options(small_model(), "muon", 1, 2);
  options.parallel.tp_update = ParallelOptions::TpUpdate::distributed;
  const auto products = [&] {
    for (const Collective& collective : collectives(make_plan(options)))
      if (collective.what == "products") return collective;
    return Collective{};
  };
  const std::int64_t layers = options.model.num_hidden_layers, side = options.model.hidden_size;
  EXPECT_EQ(products().count, layers * 7 * (1 + 5));
  EXPECT_EQ(products().bytes, layers * 7 * (8 + 5 * side * side * 4));
  options.optimizer.matrix->set("ns_steps", 8);
  EXPECT_EQ(products().count, layers * 7 * (1 + 8));
  options.optimizer.per_head = true;  // heads are whole on their rank
  EXPECT_EQ(products().count, layers * 4 * (1 + 8));
}

TEST(MakePlan, TheDeckOf256RanksReachesItsBoundsAtOnce) {
  Deck deck;
  deck.add_file(std::string(SESTINA_SOURCE_DIR) + "/inputs/plan_qwen3_32b.toml");
  const Options options = Options::read(deck);
  ASSERT_NO_THROW(deck.finish());
  const auto start = std::chrono::steady_clock::now();
  const Plan plan = make_plan(options);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  expect_legal(plan);
  ASSERT_EQ(plan.ranks(), 256);
  EXPECT_LE(plan.home_cost.gap(), 1e-3);
  EXPECT_LE(plan.dp_cost.ratio, 1.1);
  for (const RankMemory& memory : rank_memory(plan, 1)) EXPECT_LT(memory.total(), std::size_t{80} << 30);
}

// regression/reports/joint_plans.md: stages, owners and homes together, at the bound for every number of stages;
// counted again from the loads of all ranks.
TEST(MakePlan, JointPlansReachTheirBounds) {
  struct Case {
    const char* model;
    int dp, tp, pp;
    double ratio;
  };
  for (const Case& c : {Case{"qwen3-32b", 16, 8, 2, 1.0583},
                        {"qwen3-32b", 8, 8, 4, 1.0583},
                        {"qwen3-32b", 4, 8, 8, 1.0583},
                        {"llama-13b", 8, 4, 2, 1.0769},
                        {"llama-13b", 4, 4, 4, 1.0769},
                        {"llama-13b", 2, 4, 8, 1.0769},
                        {"llama-13b", 16, 4, 8, 2.6256}}) {
    Options options = plan_options(preset(c.model), "muon", c.dp, c.tp);
    options.train.global_batch = 512;
    options.train.micro_batch = 1;
    options.parallel.pp = c.pp;
    options.parallel.partition = Partition::optimal;
    const Plan plan = make_plan(options);
    ASSERT_EQ(plan.stages.size(), at(c.pp));
    double largest = 0, sum = 0;
    for (const StagePlan& stage : plan.stages)
      for (const std::int64_t cost : stage.rank_cost) {
        largest = std::max(largest, static_cast<double>(cost));
        sum += static_cast<double>(cost);
      }
    const std::string what = fmt::format("{}, {} x {} x {}", c.model, c.dp, c.tp, c.pp);
    EXPECT_NEAR(largest * plan.ranks() / sum, plan.home_cost.ratio, 1e-9) << what;
    EXPECT_NEAR(plan.home_cost.ratio, c.ratio, 5e-5) << what;
    EXPECT_NEAR(plan.home_cost.gap(), 0, 1e-9) << what;
  }
}

TEST(MakePlan, SecondsNeedAMachine) {
  Options options = plan_options(small_model(), "muon", 2);
  options.parallel.cost = ParallelOptions::Cost::seconds;
  EXPECT_THROW(make_plan(options), Error);
  options.machine.peak_tflops = options.machine.memory_bandwidth = 1;
  EXPECT_LE(make_plan(options).dp_cost.gap(), 1e-3);
}

// Qwen3-32B, dp 32, tp 8, Muon (Canzona's figure 3), and what is possible in the same reading.
TEST(PaperReading, ReproducesThePrintedFigures) {
  const PaperReading reading = canzona_reading(preset("qwen3-32b"), 32, 8);
  ASSERT_EQ(reading.dp.size(), 3u);
  EXPECT_NEAR(reading.dp[0].flops, 3.24, 0.005);
  EXPECT_NEAR(reading.dp[0].elements, 2.46, 0.005);
  EXPECT_NEAR(reading.dp[1].flops, 1.43, 0.005);
  EXPECT_NEAR(reading.dp[1].elements, 1.11, 0.005);
  EXPECT_NEAR(reading.dp[2].flops, 1, 1e-12);  // two layers on each rank
  EXPECT_NEAR(reading.dp[2].elements, 1, 1e-12);
  ASSERT_EQ(reading.homes.size(), 2u);
  EXPECT_NEAR(reading.homes[0].flops, 3.24, 0.005);
  EXPECT_NEAR(reading.homes[1].flops, 2.46, 0.01);  // 2.4546: one fc2, the 1.05 TFLOP of the paper, alone on its home
  EXPECT_NEAR(reading.homes[1].elements, 1.16, 0.005);
  EXPECT_NEAR(reading.homes_least, 1.00, 0.005);
  EXPECT_NEAR(reading.homes_most, 5.46, 0.005);
  EXPECT_LE(reading.all_homes[1].flops, reading.all_homes[0].flops);
  EXPECT_NEAR(reading.all_homes[1].flops, reading.all_homes_bound, 1e-3 * reading.all_homes_bound);
}

}  // namespace
}  // namespace sestina
