// What is remembered of checks of kernels, and which sentences ranks get.
#include "app/watch/kernel_checks.hpp"

#include <gtest/gtest.h>

#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

TEST(KernelChecksOfRanks, AreRememberedByKey) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "check/node";
  EXPECT_FALSE(is_remembered(file, "card, driver 1"));
  ASSERT_TRUE(remember_check(file, "card, driver 1"));
  EXPECT_TRUE(is_remembered(file, "card, driver 1"));
  EXPECT_FALSE(is_remembered(file, "card, driver 2"));
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(remember_check(file, "other " + std::to_string(i)));
  EXPECT_FALSE(is_remembered(file, "card, driver 1"));  // the oldest has gone
  EXPECT_TRUE(is_remembered(file, "other 63"));
}

TEST(KernelChecksOfRanks, NameRankHostAndMachine) {
  KernelCheck wrong{"eigh", "8 x 8", "values", 0.5, 1e-5};
  const KernelCheck right{"qr", "8 x 8", "Q", 1e-6, 1e-5};
  const std::vector<RankChecks> ranks = {{"node1", "card", true, {right}}, {"node2", "card", true, {right, wrong}}};
  const auto lines = wrong_kernels(ranks);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "rank 1 on node2 (card): eigh (8 x 8): values differs from its plain reference by 0.5, allowed 1e-05");
}

TEST(KernelChecksOfRanks, DoNotJudgeADeviceThatComputesNothing) {
  const KernelCheck wrong{"eigh", "8 x 8", "values", 0.5, 1e-5};
  EXPECT_TRUE(wrong_kernels(std::vector<RankChecks>{{"node1", "null device", false, {wrong}}}).empty());
}

}  // namespace
}  // namespace sestina
