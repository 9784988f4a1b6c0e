// Biases of the choices of routers on every layout: the loads are those of all ranks together, each token counts once,
// and the biases are the same on all ranks and as on one.
#include <gtest/gtest.h>

#include <numeric>

#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

constexpr double rate = 0.02;

TrainingCase biased_case(const std::string& kind) {
  TrainingCase run = pipeline_case(kind, Family::qwen3_moe);
  run.options.model.num_experts = 8;
  run.options.model.norm_topk_prob = true;
  run.options.model.router_aux_loss_coef = 0;
  run.options.model.router_bias_rate = rate;
  return run;
}

// The biases among the weights of all stages.
std::vector<float> biases_of(const Options& options, const Trained& trained) {
  std::vector<float> found;
  std::size_t at = 0;
  for (const TensorSpec& spec : tensor_specs(options.model)) {
    const auto n = static_cast<std::size_t>(spec.elements());
    if (!spec.trainable)
      for (std::size_t i = 0; i < n; ++i) found.push_back(trained.weights.at(at + i));
    at += n;
  }
  return found;
}

// Ranks: RouterBiases 2 4
template <class Space>
class RouterBiases : public testing::Test {};
TYPED_TEST_SUITE(RouterBiases, reference::RunSpaces, reference::SpaceNames);

TYPED_TEST(RouterBiases, OfDataParallelRanksHaveTheBitsOfOne) {
  using Shard = ParallelOptions::Shard;
  for (const char* kind : {"adamw", "muon"}) {
    TrainingCase run = biased_case(kind);
    const Trained one = train_alone<float, TypeParam>(alone(run), 4);
    const std::vector<float> biases = biases_of(run.options, one);
    EXPECT_EQ(biases.size(), 4u * 8u);
    EXPECT_TRUE(std::any_of(biases.begin(), biases.end(), [](float b) { return b != 0; }));
    run.options.parallel.dp = world().size();
    for (const Shard shard : {Shard::state, Shard::gradients}) {
      run.options.parallel.shard = shard;
      expect_same(one, train_together<float, TypeParam>(run, 4), kind);
    }
    run.options.parallel.shard = Shard::state;
    run.options.parallel.partition = ParallelOptions::Partition::groups;
    EXPECT_EQ(biases_of(run.options, train_together<float, TypeParam>(run, 1)),
              biases_of(run.options, train_alone<float, TypeParam>(alone(run), 1)));
  }
}

// Ranks have no weights of other ranks between two passes with shard = "weights", but all biases.
TYPED_TEST(RouterBiases, AreOnEveryRankWhereWeightsTakeTurns) {
  TrainingCase run = biased_case("muon");
  const Trained one = train_alone<float, TypeParam>(alone(run), 4);
  run.options.parallel.dp = world().size();
  run.options.parallel.shard = ParallelOptions::Shard::weights;
  const Trained several = train_together<float, TypeParam>(run, 4);
  EXPECT_EQ(one.loss, several.loss);
  EXPECT_EQ(biases_of(run.options, one), biases_of(run.options, several));
}

// Products of ep ranks, and sums over tp ranks, are rounded otherwise: the choices of the first update are those of one
// rank.
TYPED_TEST(RouterBiases, OfExpertAndTensorParallelRanksAreThoseOfOne) {
  TrainingCase run = biased_case("adamw");
  const Trained one = train_alone<float, TypeParam>(alone(run), 1);
  for (const int tp : {1, 2}) {
    run.options.parallel.tp = tp;
    run.options.parallel.dp = run.options.parallel.ep = world().size() / tp;
    EXPECT_EQ(biases_of(run.options, one), biases_of(run.options, train_together<float, TypeParam>(run, 1))) << tp;
  }
}

TYPED_TEST(RouterBiases, OfPipelineStagesHaveTheBitsOfOne) {
  const TrainingCase plain = biased_case("adamw");
  const Trained whole = train_in_one_process<TypeParam>(plain, 4);
  for (const Kind kind : {Kind::one_f_one_b, Kind::interleaved, Kind::zb_h1})
    expect_same(whole, train_pipeline<TypeParam>(world(), in_stages(plain, kind), 4),
                fmt::format("schedule {}", static_cast<int>(kind)));
}

// Each rank counts k choices of each of its tokens in each layer: not those of evaluations, nor twice those of blocks
// that are computed again.
TYPED_TEST(RouterBiases, CountEachTokenOfAnUpdateOnce) {
  for (const bool recompute : {false, true}) {
    TrainingCase run = biased_case("adamw");
    run.options.parallel.dp = world().size();
    run.options.train.recompute = recompute;
    TypedExecutor<TypeParam, float> executor(TypeParam(), make_plan({run.options, world().size()}), world());
    executor.initialise(5);
    SampleBatches batches(run.options, executor.share(), 0);
    const std::int64_t tokens = 8 * 16 / world().size();
    for (int t = 1; t <= 3; ++t) {
      take_step(executor, t, batches);
      SampleBatches others(run.options, executor.share(), 50 + t);
      executor.loss(others.next());
      for (std::size_t l = 0; l < 4; ++l) {
        const auto load = executor.stage(0).expert_loads()->load(l);
        EXPECT_EQ(std::accumulate(load.data(), load.data() + load.size(), std::int64_t{0}), 2 * tokens) << recompute;
      }
    }
    executor.finish_steps();
    executor.finish_gather();
  }
}

// Of routers with a loss as well: the largest load of all ranks' tokens is that of one rank, on every layout.
TYPED_TEST(RouterBiases, LargestLoadsAreThoseOfOneRank) {
  TrainingCase run = biased_case("adamw");
  run.options.model.router_aux_loss_coef = 0.01;
  run.options.model.router_bias_rate = 0;
  const auto largest = [&run](Communicator& ranks) {
    TypedExecutor<TypeParam, float> executor(TypeParam(), make_plan({run.options, ranks.size()}), ranks);
    executor.initialise(5);
    SampleBatches batches(run.options, executor.share(), 0);
    take_step(executor, 1, batches);
    LargestLoad mine;
    for (std::size_t i = 0; i < executor.stage_count(); ++i) mine.add(executor.run(i).largest_load());
    executor.finish_steps();
    executor.finish_gather();
    std::vector<LargestLoad> all(static_cast<std::size_t>(ranks.size()));
    ranks.all_gather(&mine, sizeof mine, all.data());
    for (const LargestLoad& load : all) mine.add(load);
    return mine;
  };
  const TrainingCase plain = run;
  run = alone(plain);
  const LargestLoad one = largest(*make_lone_communicator());
  EXPECT_GT(one.over_mean, 1);
  const auto expect_one = [&](const char* layout) {
    const LargestLoad found = largest(world());
    EXPECT_EQ(found.over_mean, one.over_mean) << layout;
    EXPECT_EQ(found.layer, one.layer) << layout;
  };
  run = plain;
  run.options.parallel.dp = world().size();
  expect_one("dp");
  run.options.parallel.ep = world().size();
  expect_one("ep");
  run.options.parallel.tp = 2;
  run.options.parallel.dp = run.options.parallel.ep = world().size() / 2;
  expect_one("tp");
  run = in_stages(plain, Kind::one_f_one_b);
  expect_one("pp");
}

// Passes alone, as those of an update that is withheld, move no bias.
TYPED_TEST(RouterBiases, StayWhereNoUpdateIsMade) {
  TrainingCase run = biased_case("adamw");
  run.options.parallel.dp = world().size();
  TypedExecutor<TypeParam, float> executor(TypeParam(), make_plan({run.options, world().size()}), world());
  executor.initialise(5);
  SampleBatches batches(run.options, executor.share(), 0);
  take_step(executor, 1, batches);
  executor.finish_gather();
  const std::vector<float> before = whole_weights(executor);
  ASSERT_TRUE(executor.backward(2, 1, batches).sums.has_value());  // no update follows
  EXPECT_EQ(whole_weights(executor), before);
  executor.finish_steps();
  executor.finish_gather();
}

}  // namespace
}  // namespace sestina
