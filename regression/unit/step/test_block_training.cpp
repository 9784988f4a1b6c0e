// Matrices cut into blocks inside a real training run, for every optimizer that has them: a step allocates nothing, its
// bits do not depend on the number of threads, an interrupted run ends with the same bits, with refreshes inline and by
// workers, and a resume with blocks of another size is refused.
#include <gtest/gtest.h>

#include "regression/unit/step/optimizer_run.hpp"

namespace sestina {
namespace {

class BlockTraining : public OptimizerRun {
 protected:
  // A model of sides 32 and 48, in blocks of at most 20.
  TrainSetup cut(int steps, const std::string& run, const std::string& precision, bool async) const {
    TrainSetup made = setup(steps, run, precision, keys(20, async));
    EXPECT_EQ(made.options.optimizer.matrix->refresh_staleness, async ? 2 : 0);
    return made;
  }
  static std::string keys(int most, bool async) {
    return "max_dim = " + std::to_string(most) + "\n[optimizer.refresh]\nevery = 3\n" +
           (async ? "mode = \"async\"\nstaleness = 2\nworkers = 2\n" : "");
  }
};

TEST_P(BlockTraining, AllocatesNothing) {
  expect_no_allocation<float>(cut(20, "fp32", "fp32", false), 6, 6);
  expect_no_allocation<bf16>(cut(20, "bf16", "bf16", false), 6, 6);
  expect_no_allocation<bf16>(cut(40, "async", "bf16", true), 14, 6);
}

TEST_P(BlockTraining, BitsDoNotDependOnTheNumberOfThreads) {
  EXPECT_EQ(train(cut(5, "one", "fp32", false), Host(1)), train(cut(5, "two", "fp32", false), Host(2)));
}

TEST_P(BlockTraining, ResumesToTheSameBits) {
  for (const bool async : {false, true}) {
    const std::string name = async ? "async" : "inline";
    const auto parts = train_parts(cut(10, name + "_whole", "fp32", async), Host());
    EXPECT_TRUE(parts.contains("/optimizer/model.layers.1.mlp.down_proj.weight/block_01_02/basis_right"));
    train(cut(5, name + "_part", "fp32", async), Host());
    TrainSetup rest = cut(10, name + "_part", "fp32", async);
    rest.checkpoint = newest_complete(rest.run_dir, false, [](const std::string&) {});
    EXPECT_EQ(train_parts(rest, Host()), parts) << name;
  }
}

TEST_P(BlockTraining, AreOfOneSizeInARun) {
  const auto deck = [&](int most) {
    Deck read;
    read.add_text(setup(3, "refused", "fp32", keys(most, false)).deck, "deck", "");
    Options::read(read);
    return read;
  };
  const Deck saved = deck(20), other = deck(24);
  const auto changes = forbidden_changes(saved, other);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes.front().key, "optimizer.max_dim");
}

INSTANTIATE_TEST_SUITE_P(Kinds, BlockTraining, testing::ValuesIn(cut_kind_names()), kind_test_name);

}  // namespace
}  // namespace sestina
