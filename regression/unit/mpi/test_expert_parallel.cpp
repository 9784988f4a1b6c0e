// Experts shared out over data-parallel ranks against one rank that has them all: the same numbers to rounding for
// every optimizer, with one holder of each expert and with several, in pipeline stages, in both kinds of precision.
#include <gtest/gtest.h>

#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

// Eight experts of which a token passes three; ep ranks of the data-parallel ones hold them together.
TrainingCase expert_case(const std::string& kind, int ep, int pp = 1) {
  TrainingCase run = training_case(kind, Family::qwen3_moe);
  Options& o = run.options;
  o.model.num_experts = 8;
  o.model.num_experts_per_tok = 3;
  o.model.moe_intermediate_size = 24;
  o.model.norm_topk_prob = true;
  o.model.router_aux_loss_coef = 0.01;
  o.parallel.pp = pp;
  o.parallel.dp = world().size() / pp;
  o.parallel.ep = ep;
  o.parallel.bucket_elements = 20000;
  return run;
}

// The numbers of expert-parallel ranks that fit the data-parallel ones.
std::vector<int> expert_ranks(int dp) {
  std::vector<int> sizes;
  for (const int ep : {2, 4})
    if (dp % ep == 0) sizes.push_back(ep);
  return sizes;
}

// A sum over the tokens of several ranks is one product here, and a tree over micro-batches on one rank: gradients of
// experts differ by rounding, as in grids of tensor-parallel ranks.
void expect_near(const Trained& one, const Trained& several, const std::string& kind, const std::string& what) {
  EXPECT_NEAR(one.loss[0], several.loss[0], 3e-6 * one.loss[0]) << what;
  EXPECT_NEAR(one.norm[0], several.norm[0], 3e-5 * one.norm[0]) << what;
  EXPECT_LT(largest_difference(one, several), allowed_drift(kind, 5).loss) << what;
  EXPECT_LT(weight_difference(one, several), allowed_drift(kind, 5).weights) << what;
}

// Ranks: ExpertParallel 2 4
template <class Space>
class ExpertParallel : public testing::Test {};
TYPED_TEST_SUITE(ExpertParallel, reference::RunSpaces, reference::SpaceNames);

TYPED_TEST(ExpertParallel, EveryOptimizerAgreesWithOneRank) {
  for (const std::string& kind : every_kind()) {
    const Trained one = train_alone<float, TypeParam>(alone(expert_case(kind, 1)), 5);
    for (const int ep : expert_ranks(world().size()))
      expect_near(one, train_together<float, TypeParam>(expert_case(kind, ep), 5), kind,
                  fmt::format("{}, ep {} of {}", kind, ep, world().size()));
  }
}

TYPED_TEST(ExpertParallel, AgreesInPipelineStages) {
  using Schedule = ParallelOptions::Schedule;
  if (world().size() < 4) return;
  for (const char* kind : {"adamw", "muon", "soap"}) {
    const Trained one = train_alone<float, TypeParam>(alone(expert_case(kind, 1)), 5);
    for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::zb_h1}) {
      TrainingCase run = expert_case(kind, 2, 2);
      run.options.parallel.schedule = schedule;
      expect_near(one, train_together<float, TypeParam>(run, 5), kind, fmt::format("{}, two stages", kind));
    }
  }
}

TYPED_TEST(ExpertParallel, RecomputesItsBlocks) {
  TrainingCase run = expert_case("muon", world().size());
  const Trained kept = train_together<float, TypeParam>(run, 5);
  run.options.train.recompute = true;
  const Trained again = train_together<float, TypeParam>(run, 5);
  EXPECT_EQ(kept.loss, again.loss);
  EXPECT_EQ(kept.weights, again.weights);
}

// The calls of a step are those of the plan.
TYPED_TEST(ExpertParallel, SendsAsOftenAsThePlanSays) {
  for (const bool recompute : {false, true}) {
    TrainingCase run = expert_case("muon", 2);
    run.options.train.recompute = recompute;
    const Plan plan = make_plan({run.options, world().size()});
    std::int64_t counts = 0, sends = 0;
    for (const Collective& collective : plan.collectives)
      if (collective.group == "experts") (collective.what == "token counts" ? counts : sends) += collective.count;
    TypedExecutor<TypeParam, float> executor(TypeParam(), plan, world());
    executor.initialise(5);
    Trained result;
    train_steps(executor, run.options, 0, 3, result);
    const auto done = executor.run().shared().groups.experts.take_count();
    EXPECT_EQ(done.counts, 3 * counts) << recompute;
    EXPECT_EQ(done.sends, 3 * sends) << recompute;
  }
}

TYPED_TEST(ExpertParallel, GivesTheSameBitsAgain) {
  const TrainingCase run = expert_case("muon", 2);
  const Trained first = train_together<float, TypeParam>(run, 4), second = train_together<float, TypeParam>(run, 4);
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.weights, second.weights);
}

// bf16 has 8 bits: where products are summed in another order, stored values differ by some 2^-9 of themselves.
TYPED_TEST(ExpertParallel, AgreesWithRoundedWeights) {
  for (const char* kind : {"adamw", "muon"}) {
    const Trained one = train_alone<bf16, TypeParam>(alone(expert_case(kind, 1)), 4);
    const Trained several = train_together<bf16, TypeParam>(expert_case(kind, world().size()), 4);
    EXPECT_LT(largest_difference(one, several), 4e-3) << kind;
    EXPECT_LT(weight_difference(one, several), 1e-2) << kind;
  }
}

}  // namespace
}  // namespace sestina
