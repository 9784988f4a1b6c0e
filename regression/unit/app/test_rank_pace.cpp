#include "app/watch/rank_pace.hpp"

#include <gtest/gtest.h>

namespace sestina {
namespace {

PhaseSeconds step_of(double passes, double reduce, double data) {
  PhaseSeconds seconds{};
  seconds[static_cast<std::size_t>(Phase::forward_backward)] = passes;
  seconds[static_cast<std::size_t>(Phase::optimizer)] = 0.1;
  seconds[static_cast<std::size_t>(Phase::reduce)] = reduce;
  seconds[static_cast<std::size_t>(Phase::data)] = data;
  return seconds;
}

TEST(RankPace, NamesTheRankThatComputesLonger) {
  RankPace pace(4);
  const std::vector<PhaseSeconds> quick{step_of(0.9, 0.5, 0), step_of(0.9, 0.5, 0), step_of(1.4, 0, 0.25),
                                        step_of(0.9, 0.5, 0)};
  for (int update = 0; update < 10; ++update) pace.add(quick);
  const std::optional<SlowRank> slow = pace.take();
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 2);
  EXPECT_EQ(slow->updates, 10);
  EXPECT_NEAR(slow->own.compute, 1.5, 1e-12);
  EXPECT_NEAR(slow->median.compute, 1.0, 1e-12);
  EXPECT_EQ(
      to_text(*slow),
      "rank 2 computes 1.5 times as long as the median of the ranks: 1.5 s of an update, not 1 s, over 10 updates "
      "(exchange 0 s, median 0.5 s; disk 0.25 s, median 0 s)");
  EXPECT_FALSE(pace.take()) << "the window starts over";
}

TEST(RankPace, IsQuietAboutWaitsAndAccidents) {
  RankPace pace(2);
  for (int update = 0; update < 10; ++update) pace.add(std::vector{step_of(1, 0, 0), step_of(1.1, 5, 5)});
  EXPECT_FALSE(pace.take()) << "10 % more";
  for (int update = 0; update < 10; ++update) pace.add(std::vector{step_of(0.001, 0, 0), step_of(0.02, 0, 0)});
  EXPECT_FALSE(pace.take()) << "tiny steps";
  for (int update = 0; update < 10; ++update) pace.add(std::vector{step_of(1, 0, 0), step_of(1.4, 0, 0)});
  EXPECT_EQ(pace.take()->rank, 1) << "of two the quicker one counts";
  RankPace alone(1);
  alone.add(std::vector{step_of(5, 0, 0)});
  EXPECT_FALSE(alone.take());
}

}  // namespace
}  // namespace sestina
