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

// Six matrices of an update's time each: all at once they need as many updates of one worker, and half of them of two;
// one after the other a single one. With less than that a worker is late, and a period that is too short is told.
TEST(RefreshFit, ResultsAreAsLateAsWorkersNeed) {
  const std::vector<RefreshLoad> loads = equal_loads(6, 0.1);
  EXPECT_EQ(fit_staleness(loads, 10, false, 1, 0.1), 6);
  EXPECT_EQ(fit_staleness(loads, 10, false, 2, 0.1), 3);
  EXPECT_EQ(fit_staleness(loads, 10, false, 2, 0.2), 2);
  EXPECT_EQ(fit_staleness(loads, 10, true, 1, 0.1), 1);
  EXPECT_EQ(fit_staleness(loads, 7, false, 1, 0.1), 6);
  EXPECT_EQ(fit_staleness(loads, 6, false, 1, 0.1), 0);
  EXPECT_EQ(fit_staleness({{0, {1.0}}}, 5, false, 1, 0.1), 0);  // longer than a period by itself
  EXPECT_EQ(fit_staleness({{0, {}}}, 5, false, 1, 0.1), 1);
  Options options = auto_options(1, 1);
  options.optimizer.refresh.automatic = false;
  options.optimizer.matrix->refresh_every = 50;
  const RefreshLag slow = fit_staleness(make_plan(options), {1, 4e9}),
                   fast = fit_staleness(make_plan(options), {20, 4e9}),
                   none = fit_staleness(make_plan(options), {1e-4, 4e9});
  EXPECT_TRUE(slow.is_enough && fast.is_enough);
  EXPECT_GT(slow.updates, 5 * fast.updates);
  EXPECT_FALSE(none.is_enough);
  EXPECT_EQ(none.updates, 49);
  EXPECT_EQ(to_text(RefreshLag{1}), "used 1 update after their copies");
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

// Costs in seconds: link, worker, worker alone, device.
ExecutorCost refreshed(double link_s, double worker_s, double device_s, double every = 10) {
  return {link_s, worker_s, worker_s, device_s, every};
}

std::int64_t in_update(const std::vector<ExecutorCost>& costs, const ExecutorRoom& room) {
  const std::vector<bool> chosen = choose_executors(costs, room);
  return std::count(chosen.begin(), chosen.end(), true);
}

// What is hidden costs nothing, however fast the device is; what is late goes to the device where that is faster than
// the wait. A narrow link makes it late.
TEST(RefreshExecutor, ANarrowLinkLeavesRefreshesToTheDevice) {
  const ExecutorRoom room{1, 5, 0.1};
  EXPECT_EQ(in_update({refreshed(0.01, 0.4, 0.05)}, room), 0);
  EXPECT_EQ(in_update({refreshed(0.2, 0.4, 0.05)}, room), 1);  // waits for 0.1 s
  EXPECT_EQ(in_update({refreshed(0.2, 0.4, 0.15)}, room), 0);  // less than the device takes
  EXPECT_EQ(in_update({refreshed(0.2, 0.4, 0.05)}, {1, 7, 0.1}), 0);
  EXPECT_EQ(in_update({}, room), 0);
  EXPECT_EQ(in_update({refreshed(0, 0, 0)}, room), 0);
}

// 40 refreshes of 0.3 s, one in ten updates of 0.1 s each: 1.2 s of work in an update for workers that have 0.1 s each.
TEST(RefreshExecutor, WhatWorkersHaveNoTimeForGoesToTheDevice) {
  const std::vector<ExecutorCost> costs(40, refreshed(0, 0.3, 0.01));
  EXPECT_EQ(in_update(costs, {12, 5, 0.1}), 0);
  EXPECT_EQ(in_update(costs, {6, 5, 0.1}), 20);
  EXPECT_EQ(in_update(costs, {1, 5, 0.1}), 37);
  EXPECT_EQ(in_update(std::vector<ExecutorCost>(40, refreshed(0, 0.3, 0.06)), {6, 5, 0.1}),
            0);  // a sixth of 0.3 s is less
}

// 40 refreshes of which each takes 0.05 s of a link that has 0.1 s in an update: those that cost least for it go first.
TEST(RefreshExecutor, WhatTheLinkHasNoTimeForGoesToTheDevice) {
  std::vector<ExecutorCost> costs(40, refreshed(0.05, 0.01, 0.02));
  for (std::size_t i = 0; i < 40; i += 2) costs[i].device_s = 0.01;
  const std::vector<bool> chosen = choose_executors(costs, {4, 5, 0.1});
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(chosen[i], i % 2 == 0) << i;  // 20 of them fill the link
  EXPECT_EQ(in_update(costs, {4, 5, 0.2}), 0);
}

Options executor_options(double host_bandwidth) {
  Options options = auto_options(2, 1);
  MatrixOptions& soap = *options.optimizer.matrix;
  options.optimizer.refresh.automatic = false;
  options.optimizer.refresh.chooses_executor = true;
  soap.refresh_every = 20;
  options.machine.host_bandwidth = host_bandwidth;
  const UpdateWork work = find_matrix_kind("soap")->work(soap, 64, 64);
  options.machine.update.push_back(
      {.kind = "soap", .rows = 64, .cols = 64, .gflop = work.update * 1e-9, .seconds = 1e-3, .refresh_s = 1e-4});
  return options;
}

// Of a whole model: each matrix is with workers over a wide link, and with the device over a narrow one; the table says
// so. Without a link the deck is refused.
TEST(RefreshExecutor, FollowsTheLinkOfTheMachine) {
  const RefreshSpeed speed{0.5, 4e10};
  for (const double bandwidth : {1e-4, 50.0}) {
    const RefreshExecutors all = choose_executors(make_plan(executor_options(bandwidth)), speed, {});
    const bool narrow = bandwidth < 1;
    const auto count = static_cast<std::ptrdiff_t>(all.in_update.size());
    EXPECT_GT(count, 0);
    EXPECT_EQ(std::count(all.in_update.begin(), all.in_update.end(), 1), narrow ? count : 0);
    std::int64_t matrices = 0;
    for (const RefreshExecutors::Row& row : all.table) {
      matrices += row.matrices;
      EXPECT_NEAR(row.cost.link_s, row.bytes / (bandwidth * 1e9), 1e-12 * row.cost.link_s) << row.pattern;
      EXPECT_GT(row.cost.device_s, 0) << row.pattern;
      EXPECT_NE(row.pattern.find("layers.*"), std::string::npos) << row.pattern;
    }
    EXPECT_EQ(matrices, count);
    const std::vector<std::string> lines = table_lines(all);
    ASSERT_EQ(lines.size(), all.table.size() + 1);
    EXPECT_NE(lines.back().find(narrow ? "  device" : "  worker"), std::string::npos) << lines.back();
  }
  Options options = executor_options(1);
  options.machine.host_bandwidth.reset();
  EXPECT_THROW(make_plan(options), Error);
  options = executor_options(1);
  options.machine.update[0].refresh_s = 0;
  EXPECT_THROW(make_plan(options), Error);
}

}  // namespace
}  // namespace sestina
