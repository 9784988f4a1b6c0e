#include "core/spike_bound.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace sestina {
namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

// The loss and norm of update t of a run that converges slowly: normal noise of 2 % and 20 %, to which a warm-up that
// lets the norm grow is added.
struct QuietRun {
  std::mt19937_64 random{7};
  std::normal_distribution<double> normal;
  WatchedValues at(int t) {
    const double loss = 3 + 6 * std::exp(-t / 2000.0) - 1e-6 * t, norm = 1 + std::min(t, 500) / 500.0;
    return {loss * (1 + 0.02 * normal(random)), norm * std::exp(0.2 * normal(random)), 20 + normal(random)};
  }
};

TEST(SpikeBound, IsTheMedianAndItsRobustDeviation) {
  std::vector<double> scratch;
  // Median 3, distances 2, 1, 0, 1, 97 with median 1: one outlier changes nothing.
  EXPECT_NEAR(*spike_bound({1, 2, 3, 4, 100}, {.window = 10, .factor = 2}, scratch), 3 + 2 * 1.4826, 1e-12);
  EXPECT_FALSE(spike_bound({1, 2, 3, 4}, {.window = 10, .factor = 2}, scratch));  // fewer than half of the window
  EXPECT_FALSE(spike_bound({}, {.window = 0, .factor = 2}, scratch));
  EXPECT_NEAR(*spike_bound(std::vector<double>(10, 5.0), {.window = 10, .factor = 10}, scratch), 5.5, 1e-12);  // floor
}

TEST(SpikeBound, RaisesNoAlarmInNoiseWithATrend) {
  QuietRun run;
  SpikeWatch watch({});
  int alarms = 0;
  for (int t = 0; t < 100000; ++t) {
    const WatchedValues now = run.at(t);
    alarms += watch.find(now) ? 1 : 0;
    watch.add(now);
  }
  EXPECT_EQ(alarms, 0);
}

TEST(SpikeBound, FindsSpikesOfEachValueAndForgetsThem) {
  for (std::size_t name = 0; name < watched_names.size(); ++name) {
    QuietRun run;
    SpikeWatch watch({});
    for (int t = 0; t < 300; ++t) watch.add(run.at(t));
    WatchedValues now = run.at(300);
    EXPECT_FALSE(watch.find(now));
    now[name] *= 4;
    const std::optional<Spike> spike = watch.find(now);
    ASSERT_TRUE(spike);
    EXPECT_EQ(spike->name, watched_names[name]);
    EXPECT_EQ(spike->value, now[name]);
    EXPECT_LT(spike->bound, now[name]);
    watch.add(now);
    EXPECT_FALSE(watch.find(run.at(301)));
    EXPECT_TRUE(watch.find(now)) << "one spike has moved the bound";
  }
}

TEST(SpikeBound, PassesOverWhatIsNotKnown) {
  SpikeWatch watch({.window = 4});
  for (int t = 0; t < 10; ++t) watch.add({1, unknown, -std::numeric_limits<double>::infinity()});
  EXPECT_EQ(watch.last(0).size(), 4u);
  EXPECT_TRUE(watch.last(1).empty());
  EXPECT_TRUE(watch.last(2).empty());
  EXPECT_FALSE(watch.find({unknown, 100, 100}));
  EXPECT_TRUE(watch.find({100, 100, 100}));
}

TEST(SpikeBound, DecidesTheSameAfterAResume) {
  const SpikeRule rule{.window = 20, .factor = 1};  // a narrow bound: many decisions
  QuietRun run;
  SpikeWatch whole(rule), resumed(rule);
  for (int t = 0; t < 57; ++t) whole.add(run.at(t));
  for (std::size_t name = 0; name < watched_names.size(); ++name) resumed.restore(name, whole.last(name));
  int spikes = 0;
  for (int t = 57; t < 400; ++t) {
    const WatchedValues now = run.at(t);
    const std::optional<Spike> a = whole.find(now), b = resumed.find(now);
    ASSERT_EQ(a.has_value(), b.has_value());
    if (a) {
      EXPECT_EQ(a->name, b->name);
      EXPECT_EQ(a->bound, b->bound);
      ++spikes;
    }
    whole.add(now);
    resumed.add(now);
  }
  EXPECT_GT(spikes, 20);
  SpikeWatch narrow({.window = 5});
  narrow.restore(0, {1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(narrow.last(0), (std::vector<double>{3, 4, 5, 6, 7}));
}

}  // namespace
}  // namespace sestina
