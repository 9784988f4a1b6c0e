// Periods that fit into what workers can do (optimizer.refresh.every = "auto").
#include "core/optimizer/refresh/auto_period.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "parallel/plan/refresh_budget.hpp"
#include "regression/unit/parallel/plan_rig.hpp"

namespace sestina {
namespace {

using Periods = std::vector<std::int64_t>;

std::vector<RefreshLoad> equal_loads(int count, double seconds) {
  std::vector<RefreshLoad> loads;
  for (int i = 0; i < count; ++i) loads.push_back({i, {seconds / 2, seconds / 2}});
  return loads;
}

double mean(const Periods& periods) {
  return std::accumulate(periods.begin(), periods.end(), 0.0) / static_cast<double>(periods.size());
}

Options auto_options(int dp, int workers) {
  Options options = plan_options(preset("llama-8m"), "soap", dp);
  options.optimizer.matrix->refresh_staleness = 10;
  options.optimizer.refresh.automatic = options.optimizer.refresh.asynchronous = true;
  options.optimizer.refresh.workers = workers;
  return options;
}

// What the simulation plays is what falls due: each matrix once in its period, matrices of one period spread over it.
TEST(RefreshFit, MatricesFallDueOnceInTheirPeriodAndApart) {
  RefreshPolicy policy;
  policy.stagger = true;
  policy.periods = {7, 7, 7, 12, 1};
  std::vector<int> due(7, 0);
  for (std::int64_t index = 0; index < 5; ++index) {
    const std::int64_t period = policy.periods[static_cast<std::size_t>(index)];
    for (std::int64_t begin = 1; begin < 50; begin += period) {
      int found = 0;
      for (std::int64_t t = begin; t < begin + period; ++t) {
        const bool now = refresh_due(t, 1000, index, policy);
        EXPECT_EQ(now, (t + refresh_phase(index, period)) % period == 0);
        found += now ? 1 : 0;
        if (now && index < 3) ++due[static_cast<std::size_t>(t % 7)];
      }
      EXPECT_EQ(found, 1) << index;
    }
  }
  EXPECT_EQ(std::count(due.begin(), due.end(), 0), 4);  // three matrices, three different updates
}

// All seconds of all refreshes in a period are those of the workers in it.
TEST(RefreshFit, WorkersAreBusyAndNotLate) {
  const std::vector<RefreshLoad> loads = equal_loads(40, 0.3);
  for (const int workers : {1, 2, 4}) {
    const Periods periods = fit_periods(loads, workers, 5, 0.1);
    EXPECT_TRUE(is_in_time(loads, periods, workers, 5, 0.1));
    const double needed = 40 * 0.3 / (0.1 * workers);  // updates
    EXPECT_GE(periods[0], needed);
    EXPECT_LE(periods[0], 1.2 * needed + 1);
    Periods shorter = periods;
    for (std::int64_t& period : shorter) period = static_cast<std::int64_t>(0.8 * static_cast<double>(period));
    EXPECT_FALSE(is_in_time(loads, shorter, workers, 5, 0.1));
  }
}

TEST(RefreshFit, TwiceTheWorkersAboutHalfThePeriod) {
  for (const double step_s : {0.1, 0.2}) {
    const double one = mean(fit_periods(equal_loads(60, 0.2), 1, 5, step_s)),
                 two = mean(fit_periods(equal_loads(60, 0.2), 2, 5, step_s));
    EXPECT_NEAR(one / two, 2, 0.3) << step_s;
  }
  const RefreshSpeed speed{0.5, 4e9};  // a whole model
  const Options one = auto_options(1, 1), two = auto_options(1, 2);
  EXPECT_NEAR(mean(fit_periods(make_plan(one), speed).of) / mean(fit_periods(make_plan(two), speed).of), 2, 0.3);
}

// Never shorter than what one job at a time allows, however fast the workers are.
TEST(RefreshFit, NoPeriodIsShorterThanTheStaleness) {
  EXPECT_EQ(fit_periods(equal_loads(4, 1e-6), 1, 5, 0.1), Periods(4, 6));
  EXPECT_EQ(fit_periods({{0, {}}, {1, {}}}, 1, 3, 0.1), Periods(2, 4));
  EXPECT_TRUE(fit_periods({}, 1, 5, 0.1).empty());
}

// Four times the seconds, twice the period: the mean age is least so.
TEST(RefreshFit, LargeMatricesHaveLongerPeriods) {
  std::vector<RefreshLoad> loads = equal_loads(20, 0.1);
  for (int i = 0; i < 20; ++i) loads.push_back({20 + i, {0.4}});
  const Periods periods = fit_periods(loads, 1, 2, 0.5);
  EXPECT_NEAR(static_cast<double>(periods.back()), 2 * static_cast<double>(periods.front()), 1.01);
  EXPECT_TRUE(is_in_time(loads, periods, 1, 2, 0.5));
  Periods equal(40, static_cast<std::int64_t>(std::floor(mean(periods))));  // of the same mean
  double load = 0, load_of_equal = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    load += loads[i].seconds() / static_cast<double>(periods[i]);
    load_of_equal += loads[i].seconds() / static_cast<double>(equal[i]);
  }
  EXPECT_LT(load, load_of_equal);
}

TEST(RefreshFit, AMatrixThatIsTooLongByItselfIsCountedAndWaitsForNoOther) {
  const Options options = auto_options(1, 1);
  const RefreshPeriods slow = fit_periods(make_plan(options), {1e-4, 1e9});
  EXPECT_GT(slow.late, 0);
  EXPECT_EQ(fit_periods(make_plan(options), {10, 1e9}).late, 0);
  for (const std::int64_t period : slow.of) EXPECT_GE(period, 11);
  const std::vector<RefreshLoad> loads = equal_loads(10, 1);  // ten updates each, five allowed
  const Periods periods = fit_periods(loads, 1, 5, 0.1);
  EXPECT_TRUE(is_in_time(loads, periods, 1, 5, 0.1));
  EXPECT_GE(periods[0], 100);
  EXPECT_LE(periods[0], 300);
}

// Stages in one process share its workers: their periods are those of a process with all layers; a process of its own
// for each stage has workers of its own.
TEST(RefreshFit, StagesOfAProcessShareItsWorkers) {
  const RefreshSpeed speed{0.5, 4e9};
  Options options = auto_options(1, 1);
  const Periods whole = fit_periods(make_plan(options), speed).of;
  options.parallel.pp = 4;
  EXPECT_EQ(fit_periods(make_plan({options, 1}), speed).of, whole);
  EXPECT_NEAR(mean(whole) / mean(fit_periods(make_plan({options, 4}), speed).of), 4, 0.8);
}

// Rates by shape.
TEST(RefreshFit, EachShapeHasItsRate) {
  Options options = auto_options(1, 1);
  const std::int64_t d = options.model.hidden_size, n = options.model.intermediate_size;
  RefreshSpeed speed{0.5, 4e9, {{d, d, d, d, 1e9}}};
  EXPECT_EQ(speed.flops_of(d, d), 1e9);
  EXPECT_EQ(speed.flops_of(n, d), 4e9);
  const Periods all = fit_periods(make_plan(options), {0.5, 4e9}).of, slow = fit_periods(make_plan(options), speed).of;
  EXPECT_GT(mean(slow), mean(all));
  speed.rates.push_back({n, d, 256, d, 2e9});
  EXPECT_EQ(to_text(speed),
            fmt::format("{} x {} at 1 GFLOP/s, {} x {} at 2 GFLOP/s (measured at 256 x {})", d, d, n, d, d));
}

// At the sides of the matrix where there is time; else at smaller ones, and a rate that falls goes on falling.
TEST(RefreshFit, MeasuresAtTheSidesOfTheMatrix) {
  const MatrixOptions soap = default_options(*find_matrix_kind("soap"));
  const RefreshRate whole = measure_refresh_rate(soap, 272, 260, 100);
  EXPECT_EQ(whole.measured_rows, 272);
  EXPECT_EQ(whole.measured_cols, 260);
  EXPECT_GT(whole.flops, 1e6);
  const RefreshRate cut = measure_refresh_rate(soap, 8192, 64, 0);
  EXPECT_EQ(cut.measured_rows, 256);
  EXPECT_EQ(cut.measured_cols, 64);
  EXPECT_EQ(measure_refresh_rate(default_options(*find_matrix_kind("muon")), 64, 64, 1).measured_rows, 0);
}

// Owners on more ranks have fewer matrices each, and refresh them more often; each matrix of the model has a period.
TEST(RefreshFit, FollowsWhoOwnsWhat) {
  const RefreshSpeed speed{0.5, 4e9};
  const Options one = auto_options(1, 1), four = auto_options(4, 1);
  const Periods alone = fit_periods(make_plan(one), speed).of, shared = fit_periods(make_plan(four), speed).of;
  ASSERT_EQ(alone.size(), shared.size());
  EXPECT_EQ(alone.size(), matrix_index(tensor_specs(one.model), one.optimizer).size());
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_GE(shared[i], 11);
    EXPECT_LT(shared[i], alone[i]);
  }
}

}  // namespace
}  // namespace sestina
