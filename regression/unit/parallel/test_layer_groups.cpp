// Layers that are updated before all gradients are there: which buckets they wait for, and which they send.
#include "parallel/plan/layer_groups.hpp"

#include <gtest/gtest.h>

#include <set>

#include "plan_rig.hpp"

namespace sestina {
namespace {

using Numbers = std::vector<std::size_t>;

// A layer waits for what has a matrix of it, once; and what a group sends has matrices of it and of earlier groups.
void expect_right(const StagePlan& stage, const GradientBuckets& all) {
  const std::vector<LayerGroup> groups = layer_groups(stage, all);
  std::set<std::size_t> there, sent;
  std::set<std::int64_t> updated;
  std::size_t end = stage.specs.size();
  for (const LayerGroup& group : groups) {
    for (const std::size_t bucket : group.waits) EXPECT_TRUE(there.insert(bucket).second) << bucket;
    EXPECT_LE(group.end_tensor, end);
    end = group.first_tensor;
    for (std::size_t i = group.first_tensor; i < group.end_tensor; ++i) {
      EXPECT_GE(stage.specs[i].layer, group.first_layer);
      EXPECT_LT(stage.specs[i].layer, group.first_layer + group.layers);
      if (is_updated_by_layer(stage, i)) EXPECT_TRUE(there.contains(at(all.place[i].bucket))) << stage.specs[i].name;
      updated.insert(stage.specs[i].layer);
    }
    for (const std::size_t bucket : group.sends) {
      EXPECT_TRUE(sent.insert(bucket).second) << bucket;
      for (const int spec : all.buckets[bucket].specs) {
        EXPECT_TRUE(is_updated_by_layer(stage, at(spec)));
        EXPECT_TRUE(updated.contains(stage.specs[at(spec)].layer));
      }
    }
  }
  EXPECT_EQ(updated.size(), static_cast<std::size_t>(stage.layers.end - stage.layers.begin));
  for (std::size_t bucket = 0; bucket < all.buckets.size(); ++bucket)
    for (const int spec : all.buckets[bucket].specs)
      if (is_updated_by_layer(stage, at(spec))) EXPECT_TRUE(there.contains(bucket)) << bucket;
}

TEST(LayerGroups, EachLayerByItselfWhereItHasABucket) {
  Options options = plan_options(small_model(), "muon", 2);
  options.parallel.bucket_elements = 1;
  const Plan plan = make_plan(options);
  const GradientBuckets all = gradient_buckets(plan.stages[0], options.parallel);
  const std::vector<LayerGroup> groups = layer_groups(plan.stages[0], all);
  ASSERT_EQ(groups.size(), 3u);
  for (int g = 0; g < 3; ++g) {
    EXPECT_EQ(groups[at(g)].first_layer, 2 - g);
    EXPECT_EQ(groups[at(g)].layers, 1);
    EXPECT_EQ(groups[at(g)].waits, groups[at(g)].sends);
    EXPECT_EQ(groups[at(g)].waits.size(), 1u);
  }
  expect_right(plan.stages[0], all);
}

TEST(LayerGroups, TogetherWhereTheyShareABucket) {
  for (const std::int64_t elements : {1, 1000000, 2000000, 100000000}) {
    Options options = plan_options(small_model(), "soap", 4);
    options.model.num_hidden_layers = 7;
    options.parallel.bucket_elements = elements;
    for (const int stages : {1, 3}) {
      options.parallel.pp = stages;
      const Plan plan = make_plan(options);
      for (const StagePlan& stage : plan.stages) expect_right(stage, gradient_buckets(stage, options.parallel));
    }
  }
  Options options = plan_options(small_model(), "muon", 2);
  options.parallel.bucket_elements = 100000000;
  const Plan plan = make_plan(options);
  EXPECT_EQ(layer_groups(plan.stages[0], gradient_buckets(plan.stages[0], options.parallel)).size(), 1u);
}

// What the matrix optimizer updates outside of layers is sent when all is updated.
TEST(LayerGroups, ABucketWithTheHeadIsSentByNone) {
  Options options = plan_options(small_model(), "muon", 2);
  options.optimizer.group.push_back({.match = "lm_head*", .kind = "muon"});
  options.parallel.bucket_elements = 100000000;
  const Plan plan = make_plan(options);
  const std::vector<LayerGroup> groups =
      layer_groups(plan.stages[0], gradient_buckets(plan.stages[0], options.parallel));
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_TRUE(groups[0].sends.empty());
}

}  // namespace
}  // namespace sestina
