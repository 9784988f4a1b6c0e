// Where passes that were computed again first differ, of digests made up here.
#include "app/audit/first_difference.hpp"

#include <gtest/gtest.h>

namespace sestina {
namespace {

// Two sequences through a layer, its gradient and that of a weight.
std::vector<PassDigest> passes() {
  return {{PassKind::forward, 0, "model.layers.0.mlp", "output", 1, true, {10, 11}},
          {PassKind::loss, 0, "lm_head", "loss", 2, true, {12, 13}},
          {PassKind::backward, 0, "model.layers.0", "gradient of the input", 1, true, {14, 15}},
          {PassKind::backward, 0, "model.layers.0", "gradient of model.w", 1, false, {16}}};
}

Digests digests(std::vector<std::size_t> wrong, std::uint64_t value) {
  Digests all{10, 11, 12, 13, 14, 15, 16};
  for (const std::size_t i : wrong) all[i] = value;
  return all;
}

// A lone replica computes its micro-batch twice.
std::optional<FirstDifference> of_two(const Digests& first, const Digests& second) {
  const auto alone = make_lone_communicator();
  ReplicaResults results(*alone);
  results.add({0}, first);
  results.add({0}, second);
  EXPECT_EQ(results.differ(), first != second);
  return first_difference(results, 0, passes());
}

TEST(FirstDifference, IsTheFirstInTheOrderOfThePasses) {
  EXPECT_FALSE(of_two(digests({}, 0), digests({}, 0)));
  const auto forward = of_two(digests({1, 3, 5, 6}, 7), digests({1, 2, 3, 4, 5, 6}, 8));
  ASSERT_TRUE(forward);
  EXPECT_EQ(forward->at.pass, PassKind::forward);
  EXPECT_EQ(forward->at.layer, "model.layers.0.mlp");
  EXPECT_EQ(forward->at.sequence, 1);
  EXPECT_EQ(forward->ranks, std::vector{0});
  const auto weight = of_two(digests({6}, 7), digests({6}, 8));
  ASSERT_TRUE(weight);
  EXPECT_EQ(weight->at.tensor, "gradient of model.w");
  EXPECT_EQ(weight->at.sequence, -1);
}

FirstDifference difference(PassKind pass, int stage, bool comes_again = true) {
  FirstDifference one;
  one.at.pass = pass;
  one.at.stage = stage;
  one.at.layer = "model.layers.1.mlp";
  one.at.tensor = "output";
  one.at.micro = 2;
  one.at.sequence = 0;
  one.ranks = {1};
  one.first_sample = one.last_sample = 12;
  one.comes_again = comes_again;
  return one;
}

// Stages come one after the other, backward in the opposite order; what comes again is known better.
TEST(FirstDifference, OfRanksIsTheEarliest) {
  const FirstDifference ordered[] = {difference(PassKind::forward, 0), difference(PassKind::forward, 1),
                                     difference(PassKind::backward, 1), difference(PassKind::backward, 0),
                                     difference(PassKind::backward, 1, false)};
  for (std::size_t i = 0; i < std::size(ordered); ++i)
    for (std::size_t j = 0; j < std::size(ordered); ++j) {
      std::optional<FirstDifference> first = ordered[i];
      keep_first(first, ordered[j]);
      const FirstDifference& expected = ordered[std::min(i, j)];
      EXPECT_EQ(std::tuple(first->at.pass, first->at.stage, first->comes_again),
                std::tuple(expected.at.pass, expected.at.stage, expected.comes_again));
    }
  const auto alone = make_lone_communicator();
  EXPECT_FALSE(first_of_ranks(*alone, std::nullopt));
  const auto told = first_of_ranks(*alone, ordered[3]);
  ASSERT_TRUE(told);
  EXPECT_EQ(to_text(*told), to_text(ordered[3]));
}

TEST(FirstDifference, IsToldInOneSentence) {
  EXPECT_EQ(to_text(difference(PassKind::forward, 0)),
            "first different in the forward pass: output of model.layers.1.mlp (rank 1, stage 0, micro-batch 2, sample "
            "12)");
  FirstDifference gradient{place_of_gradient(passes(), "model.w"), {0, 1}, 4, 7};
  EXPECT_EQ(gradient.at.layer, "model.layers.0");
  EXPECT_EQ(to_text(gradient),
            "first different in the backward pass: gradient of model.w in model.layers.0 (ranks 0, 1, stage 0, "
            "micro-batch 0, samples 4 to 7)");
  gradient.comes_again = false;
  EXPECT_NE(to_text(gradient).find("the fault has passed"), std::string::npos);
}

}  // namespace
}  // namespace sestina
