#include "parallel/plan/refresh_budget.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/refresh/auto_period.hpp"
#include "parallel/plan/matrix_groups.hpp"

namespace sestina {
namespace {

constexpr double rounding = 1e-9;  // the rounding error of shares that should be whole numbers

// Shares out in proportion to the weights; what one would have beyond `most` goes to the others.
std::vector<double> real_shares(const std::vector<double>& cost, const std::vector<double>& weight, double budget,
                                double most) {
  std::vector<double> share(cost.size(), 0);
  for (bool changed = true; changed;) {
    changed = false;
    double left = budget, weighted = 0;
    for (std::size_t i = 0; i < cost.size(); ++i)
      if (share[i] == most)
        left -= cost[i] * most;
      else
        weighted += cost[i] * weight[i];
    for (std::size_t i = 0; i < cost.size(); ++i) {
      if (share[i] == most) continue;
      share[i] = weighted > 0 ? left * weight[i] / weighted : most;
      if (share[i] >= most) {
        share[i] = most;
        changed = true;
      }
    }
  }
  return share;
}

// Returns the FLOPs of a refresh of all matrices of a stage, as the row of the kind states them; for a kind that states
// none, rows^3 + cols^3 of each matrix, up to a factor.
double refresh_cost(const StagePlan& stage, const OptimizerOptions& optimizer) {
  const MatrixKind* kind = find_matrix_kind(optimizer.kind);
  const auto cube = [](std::int64_t side) { return std::pow(static_cast<double>(side), 3); };
  double sum = 0;
  for (const TensorSpec& spec : stage.specs) {
    if (!is_matrix_optimized(spec, optimizer)) continue;
    for (const MatrixPart& part : matrix_parts(spec, optimizer))
      sum += kind && kind->work ? kind->work(*optimizer.matrix, part.rows, part.cols).refresh
                                : cube(part.rows) + cube(part.cols);
  }
  return sum;
}

// Measured rates are those of a machine on which nothing else runs, but workers share caches and memory with the
// compute threads.
constexpr double reserve = 1.5;

// Makes one job for each snapshot, with its part of the kind's refresh work.
RefreshLoad load_of(const MatrixOptions& options, const MatrixPart& part, std::int64_t index, double flops) {
  RefreshLoad load{index};
  const auto rows = static_cast<std::size_t>(part.rows), cols = static_cast<std::size_t>(part.cols);
  for (const FieldSize& field : fields_of(options, rows, cols))
    if (field.name.find("snapshot") != std::string::npos) load.jobs.push_back(snapshot_work(field));
  const double work = refresh_flops(options, part.rows, part.cols), all = load.seconds();
  for (double& job : load.jobs) job *= reserve * work / (flops * all);
  return load;
}

// Collects jobs by rank of the stage; a matrix that is cut over tensor-parallel ranks counts whole on each of them.
void add_loads(const StagePlan& stage, const Plan& plan, const MatrixIndex& index, const RefreshSpeed& speed,
               std::vector<RefreshLoad>* loads) {
  const OptimizerOptions& o = plan.input.optimizer;
  for (std::size_t i = 0; i < stage.specs.size(); ++i) {
    const TensorSpec& spec = stage.specs[i];
    if (!is_matrix_optimized(spec, o)) continue;
    std::int64_t next = index.at(spec.name);
    for (const MatrixPart& part : matrix_parts(spec, o)) {
      const RefreshLoad load = load_of(*o.matrix, part, next++, speed.flops_of(part.rows, part.cols));
      for (int rank = 0; rank < plan.dp * plan.tp; ++rank) {
        const bool owns = stage.owner[i] < 0 || stage.owner[i] == rank / plan.tp;
        const bool homes = stage.home[i] == every_rank || stage.home[i] == rank % plan.tp;
        if (owns && homes) loads[rank].push_back(load);
      }
    }
  }
  for_separate_shares(stage, plan.input, [&](std::size_t i, const SeparatePart& one) {
    const MatrixShare& share = stage.shares[i];
    const std::int64_t matrix = index.at(stage.specs[at(share.spec)].name) + static_cast<std::int64_t>(one.matrix);
    loads[share.rank].push_back(load_of(*o.matrix, one.part, matrix, speed.flops_of(one.part.rows, one.part.cols)));
  });
}

// Collects jobs by rank of the world, of all stages that its process has.
std::vector<std::vector<RefreshLoad>> loads_of(const Plan& plan, const MatrixIndex& index, const RefreshSpeed& speed) {
  const int in_stage = plan.dp * plan.tp;
  std::vector<std::vector<RefreshLoad>> loads(at(in_stage * plan.pipe.ranks));
  for (int s = 0; s < plan.pp; ++s)
    add_loads(plan.stages[at(s)], plan, index, speed, &loads[at(in_stage * plan.pipe.rank_of(s))]);
  return loads;
}

}  // namespace

std::vector<double> refresh_weights(const RefreshOptions& refresh, const std::vector<int>& delays) {
  const int largest = *std::max_element(delays.begin(), delays.end());
  const bool reversed = refresh.budget == RefreshOptions::Budget::reversed;
  std::vector<double> weights;
  for (const int delay : delays)
    weights.push_back(std::pow(1.0 + (reversed ? largest - delay : delay), refresh.budget_power));
  return weights;
}

std::vector<std::int64_t> share_refreshes(const std::vector<double>& cost, const std::vector<double>& weight,
                                          std::int64_t uniform, std::int64_t most) {
  const double budget = static_cast<double>(uniform) * std::accumulate(cost.begin(), cost.end(), 0.0);
  const std::vector<double> share = real_shares(cost, weight, budget, static_cast<double>(most));
  std::vector<std::int64_t> counts;
  double left = budget * (1 + rounding);
  for (std::size_t i = 0; i < cost.size(); ++i) {
    counts.push_back(std::max<std::int64_t>(static_cast<std::int64_t>(share[i] + rounding), 1));
    left -= cost[i] * static_cast<double>(counts[i]);
  }
  const auto remainder = [&](std::size_t i) { return share[i] - static_cast<double>(counts[i]); };
  std::vector<double> rest;
  for (std::size_t i = 0; i < cost.size(); ++i) rest.push_back(remainder(i));
  std::vector<std::size_t> order(cost.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rest[a] > rest[b]; });
  for (const std::size_t i : order) {
    bool in_order = counts[i] < most && cost[i] <= left;
    for (std::size_t j = 0; j < cost.size(); ++j) in_order &= weight[j] <= weight[i] || counts[j] > counts[i];
    if (!in_order) continue;
    ++counts[i];
    left -= cost[i];
  }
  return counts;
}

void plan_refreshes(Plan& plan) {
  const OptimizerOptions& optimizer = plan.input.optimizer;
  if (!optimizer.matrix || optimizer.refresh.budget == RefreshOptions::Budget::uniform) return;
  std::vector<int> delays;
  std::vector<double> cost;
  for (int s = 0; s < plan.pp; ++s) {
    delays.push_back(update_delay(plan.pipe, s));
    cost.push_back(refresh_cost(plan.stages[at(s)], optimizer));
  }
  const std::vector<double> weight = refresh_weights(optimizer.refresh, delays);
  // The window is one in which the share of every stage is at least one refresh, and rounding is slight.
  double all = 0, weighted = 0;
  for (std::size_t i = 0; i < cost.size(); ++i) {
    all += cost[i];
    weighted += cost[i] * weight[i];
  }
  if (all == 0) return;
  constexpr double fine = 100;
  const double least = *std::min_element(weight.begin(), weight.end());
  const auto uniform = static_cast<std::int64_t>(std::max(fine, std::ceil(weighted / (all * least))));
  const std::int64_t window = uniform * optimizer.matrix->refresh_every;
  const std::vector<std::int64_t> counts =
      share_refreshes(cost, weight, uniform, window / (optimizer.matrix->refresh_staleness + 1));
  for (int s = 0; s < plan.pp; ++s) {
    plan.stages[at(s)].refreshes = counts[at(s)];
    plan.stages[at(s)].refresh_window = window;
  }
}

double RefreshSpeed::flops_of(std::int64_t rows, std::int64_t cols) const {
  for (const RefreshRate& rate : rates)
    if (rate.rows == rows && rate.cols == cols) return rate.flops;
  return flops;
}

std::string to_text(const RefreshSpeed& speed) {
  std::string text;
  for (const RefreshRate& rate : speed.rates) {
    if (rate.measured_rows == 0) continue;
    text +=
        fmt::format("{}{} x {} at {:.3g} GFLOP/s", text.empty() ? "" : ", ", rate.rows, rate.cols, rate.flops * 1e-9);
    if (rate.measured_rows != rate.rows || rate.measured_cols != rate.cols)
      text += fmt::format(" (measured at {} x {})", rate.measured_rows, rate.measured_cols);
  }
  return text.empty() ? "nothing to measure" : text;
}

RefreshPeriods fit_periods(const Plan& plan, const RefreshSpeed& speed) {
  const OptimizerOptions& o = plan.input.optimizer;
  const MatrixIndex index = matrix_index(tensor_specs(plan.input.model), o);
  const std::int64_t staleness = o.matrix->refresh_staleness;
  RefreshPeriods result;
  for (const std::vector<RefreshLoad>& loads : loads_of(plan, index, speed)) {
    const std::vector<std::int64_t> periods = fit_periods(loads, o.refresh.workers, staleness, speed.step_s);
    for (std::size_t i = 0; i < loads.size(); ++i) {
      const auto place = static_cast<std::size_t>(loads[i].index);
      result.of.resize(std::max(result.of.size(), place + 1), 0);
      if (result.of[place] == 0 && loads[i].alone(o.refresh.workers) > static_cast<double>(staleness) * speed.step_s)
        ++result.late;
      result.of[place] = std::max(result.of[place], periods[i]);
    }
  }
  return result;
}

std::string to_text(const RefreshPeriods& periods) {
  if (periods.of.empty()) return "no matrix";
  const auto [least, most] = std::minmax_element(periods.of.begin(), periods.of.end());
  const double mean =
      std::accumulate(periods.of.begin(), periods.of.end(), 0.0) / static_cast<double>(periods.of.size());
  if (*least == *most) return fmt::format("every {} updates", *most);
  return fmt::format("every {} to {} updates, {:.1f} in the mean", *least, *most, mean);
}

}  // namespace sestina
