// Data parallelism against one rank: the same bits of loss, norm and weights for every optimizer and every partition,
// where the micro-batches of the ranks are aligned parts of the tree; otherwise within rounding.
#include <gtest/gtest.h>

#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

using Partition = ParallelOptions::Partition;

template <class T>
void expect_same(const Trained& one, const Trained& several, const std::string& what) {
  ASSERT_EQ(one.loss.size(), several.loss.size()) << what;
  for (std::size_t t = 0; t < one.loss.size(); ++t) {
    ASSERT_EQ(one.loss[t], several.loss[t]) << what << ", update " << t + 1;
    ASSERT_EQ(one.norm[t], several.norm[t]) << what << ", update " << t + 1;
  }
  ASSERT_EQ(one.weights, several.weights) << what;
}

// Ranks: DataParallel 2 4
template <class Space>
class DataParallel : public testing::Test {};
TYPED_TEST_SUITE(DataParallel, reference::RunSpaces, reference::SpaceNames);

// Ranks 1, 2 and 4 divide the four micro-batches into aligned parts.
TYPED_TEST(DataParallel, EveryOptimizerGivesTheBitsOfOneRank) {
  for (const std::string& kind : every_kind_without_tp()) {
    TrainingCase one = training_case(kind), several = one;
    several.options.parallel.dp = world().size();
    expect_same<float>(train_alone<float, TypeParam>(one, 12), train_together<float, TypeParam>(several, 12), kind);
  }
}

TYPED_TEST(DataParallel, WeightsThatOverflowOnOneRankAreKnownToAll) {
  for (const char* kind : {"adamw", "muon", "shampoo", galore_int8, apollo_int8}) {
    TrainingCase run = training_case(kind);
    run.options.parallel.dp = world().size();
    EXPECT_EQ((train_together<float, TypeParam>(run, 2).weights_finite), (std::vector<bool>{true, true})) << kind;
    EXPECT_EQ(finite_after_overflow<TypeParam>(run), (std::vector<bool>{true, false})) << kind;
  }
}

TYPED_TEST(DataParallel, NodesOfTwoRanksChangeNoBit) {
  for (const std::string& kind : every_kind_without_tp()) {
    TrainingCase one_node = training_case(kind), nodes = one_node;
    one_node.options.parallel.dp = nodes.options.parallel.dp = world().size();
    nodes.options.parallel.node_size = 2;
    expect_same<float>(train_together<float, TypeParam>(one_node, 5), train_together<float, TypeParam>(nodes, 5), kind);
  }
}

TYPED_TEST(DataParallel, RoundedWeightsGiveTheBitsOfOneRank) {
  for (const char* kind : {"adamw", "muon", "soap", galore_int8}) {
    TrainingCase one = training_case(kind), several = one;
    several.options.parallel.dp = world().size();
    expect_same<bf16>(train_alone<bf16, TypeParam>(one, 8), train_together<bf16, TypeParam>(several, 8), kind);
  }
}

TYPED_TEST(DataParallel, EveryPartitionGivesTheSameNumbers) {
  TrainingCase plain = training_case("muon");
  plain.options.parallel.dp = world().size();
  const Trained optimal = train_together<float, TypeParam>(plain, 6);
  for (const Partition partition :
       {Partition::balanced, Partition::layerwise, Partition::start_index, Partition::replicated}) {
    TrainingCase other = plain;
    other.options.parallel.partition = partition;
    other.options.parallel.bucket_elements = 5000;  // several buckets, some in flight at a time
    expect_same<float>(optimal, train_together<float, TypeParam>(other, 6),
                       std::to_string(static_cast<int>(partition)));
  }
}

// Ranks: DataParallelUneven 3 5
template <class Space>
class DataParallelUneven : public testing::Test {};
TYPED_TEST_SUITE(DataParallelUneven, reference::RunSpaces, reference::SpaceNames);

// Twelve micro-batches: four each on three ranks, which are aligned parts of the tree again; on five, two or three
// each, which are not.
TYPED_TEST(DataParallelUneven, EveryOptimizerAgreesWithOneRank) {
  for (const std::string& kind : every_kind()) {
    TrainingCase one = training_case(kind);
    one.options.train.global_batch = 12;
    TrainingCase several = one;
    several.options.parallel.dp = world().size();
    const Trained a = train_alone<float, TypeParam>(one, 20), b = train_together<float, TypeParam>(several, 20);
    if (world().size() == 3) {
      expect_same<float>(a, b, kind);
      continue;
    }
    EXPECT_NEAR(a.loss[0], b.loss[0], 1e-12 * a.loss[0]) << kind;
    EXPECT_LT(largest_difference(a, b), allowed_drift(kind, 20).loss) << kind;
    EXPECT_LT(weight_difference(a, b), allowed_drift(kind, 20).weights) << kind;
    // Lion's sign may hide from the weights what is rounded in another order.
    EXPECT_TRUE(a.weights != b.weights || a.norm != b.norm)
        << kind << ": unaligned parts that change no bit are not what is tested here";
  }
}

}  // namespace
}  // namespace sestina
