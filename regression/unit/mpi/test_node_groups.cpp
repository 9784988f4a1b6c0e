// Two-level collectives against those of one level, with ranks that act as several nodes; and a training run on them.
#include <gtest/gtest.h>

#include "parallel/node_groups.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

TEST(NodeGroups, GiveWhatOneLevelGives) {
  for (const int node_size : {0, 1, 2, 3, 4}) {  // 4 of 6: a node of four and one of two
    const auto group = with_node_groups(world().split(0, world().rank()), node_size);
    const int n = group->size(), me = group->rank();
    ASSERT_EQ(n, world().size());
    ASSERT_EQ(me, world().rank());
    double values[2] = {1.0 + me, static_cast<double>(me)};
    group->all_reduce(values, 2, Reduction::sum);
    EXPECT_EQ(values[0], n * (n + 1) / 2.0) << node_size;
    double largest = me;
    group->all_reduce(&largest, 1, Reduction::max);
    EXPECT_EQ(largest, n - 1) << node_size;
    for (int root = 0; root < n; ++root) {
      int value = me == root ? 100 + root : -1;
      group->broadcast(&value, sizeof value, root);
      EXPECT_EQ(value, 100 + root) << node_size;
    }
    group->barrier();
  }
}

TEST(NodeGroups, ChangeNoBitOfARun) {
  TrainingCase one_node = training_case("muon"), several = one_node;
  one_node.options.train.global_batch = several.options.train.global_batch = 6;
  one_node.options.parallel.dp = several.options.parallel.dp = world().size();
  several.options.parallel.node_size = 2;
  const Trained a = train_together<float>(one_node, 4), b = train_together<float>(several, 4);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.norm, b.norm);
  EXPECT_EQ(a.weights, b.weights);
}

}  // namespace
}  // namespace sestina
