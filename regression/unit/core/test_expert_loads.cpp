// Loads of experts by hand: what passes add up, what is largest, places of minibatches in flight.
#include "core/optimizer/expert_loads.hpp"

#include <gtest/gtest.h>

namespace sestina {
namespace {

void count(ExpertLoads& loads, std::size_t layer, std::initializer_list<int> tokens, std::int64_t minibatch = 0) {
  const Vector<std::int64_t, Host> load = loads.load(layer, minibatch);
  std::size_t expert = 0;
  for (const int n : tokens) load(expert++) += n;
}

LargestLoad largest_of(ExpertLoads& loads, std::int64_t minibatch = 0) {
  loads.take(minibatch);
  return loads.largest();
}

TEST(ExpertLoads, TheLargestIsToldOverTheMeanOfItsLayer) {
  ExpertLoads loads({2, 5}, 4);  // layers 2 to 4 of a model
  EXPECT_EQ(largest_of(loads).layer, -1);
  count(loads, 0, {3, 5, 4, 4});
  count(loads, 1, {1, 10, 3, 2});
  count(loads, 2, {6, 6, 2, 2});
  count(loads, 1, {9, 0, 3, 4});  // another micro-batch: 10, 10, 6, 6
  EXPECT_EQ(largest_of(loads).layer, 4);
  EXPECT_EQ(largest_of(loads).over_mean, 1.5);
  for (double& load : loads.take()) load *= 3;  // those of three ranks
  EXPECT_EQ(loads.largest().over_mean, 1.5);
  EXPECT_EQ(loads.of_layer(1)[0], 30);
  loads.start_step();
  EXPECT_EQ(largest_of(loads).layer, -1);
}

TEST(ExpertLoads, OfEqualLayersTheFirstIsTold) {
  ExpertLoads loads({0, 2}, 2);
  count(loads, 0, {1, 3});
  count(loads, 1, {30, 10});
  EXPECT_EQ(largest_of(loads).layer, 0);
  for (const auto& order : {std::vector{4, 1, 3}, std::vector{1, 3, 4}, std::vector{-1, 4, 1}}) {
    LargestLoad all;
    for (const int layer : order) all.add({layer == 3 ? 1.25 : layer < 0 ? 0 : 1.5, layer});
    EXPECT_EQ(all.layer, 1);
    EXPECT_EQ(all.over_mean, 1.5);
  }
}

TEST(ExpertLoads, MinibatchesInFlightHavePlacesOfTheirOwn) {
  ExpertLoads loads({0, 1}, 2);
  loads.keep(3);
  for (std::int64_t minibatch = 0; minibatch < 8; ++minibatch) {
    loads.start_step(minibatch);
    count(loads, 0, {1, 1 + static_cast<int>(minibatch)}, minibatch);
    if (minibatch < 2) continue;
    loads.take(minibatch - 2);
    EXPECT_EQ(loads.of_layer(0)[0], 1);
    EXPECT_EQ(loads.of_layer(0)[1], static_cast<double>(minibatch - 1));
  }
}

}  // namespace
}  // namespace sestina
