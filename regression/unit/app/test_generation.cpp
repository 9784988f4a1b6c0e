// How the next token is picked from logits.
#include <gtest/gtest.h>

#include "app/generation.hpp"

namespace sestina {
namespace {

TEST(SampleToken, ZeroTemperatureTakesTheLargest) {
  std::vector<float> logits = {0.1f, 3.0f, -2.0f};
  EXPECT_EQ(sample_token(logits, 0, 0, 0.99), 1);
}

TEST(SampleToken, FollowsTheProbabilities) {
  // Softmax of log(1), log(2), log(5): cumulative 1/8, 3/8, 1.
  const std::vector<float> logits = {0.0f, 0.6931472f, 1.6094379f};
  for (const auto& [u, token] : {std::pair{0.0, 0}, {0.12, 0}, {0.13, 1}, {0.37, 1}, {0.38, 2}, {0.999, 2}}) {
    std::vector<float> copy = logits;
    EXPECT_EQ(sample_token(copy, 1.0, 0, u), token) << u;
  }
}

TEST(SampleToken, TopKHidesTheRest) {
  for (double u = 0.01; u < 1; u += 0.07) {
    std::vector<float> logits = {1.0f, 0.9f, 5.0f, 4.0f};
    EXPECT_GE(sample_token(logits, 2.0, 2, u), 2) << u;
  }
}

}  // namespace
}  // namespace sestina
