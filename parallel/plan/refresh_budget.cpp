#include "parallel/plan/refresh_budget.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/refresh/auto_period.hpp"
#include "parallel/plan/expert_owners.hpp"
#include "parallel/plan/matrix_groups.hpp"
#include "parallel/plan/plan_cost.hpp"

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
  RefreshLoad load{.index = index, .rows = part.rows, .cols = part.cols};
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
        const bool owns = is_owner(stage, static_cast<int>(i), plan.input, rank / plan.tp);
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

RefreshLag fit_staleness(const Plan& plan, const RefreshSpeed& speed) {
  const OptimizerOptions& o = plan.input.optimizer;
  const std::int64_t every = o.matrix->refresh_every;
  RefreshLag lag{1};
  for (const std::vector<RefreshLoad>& loads : loads_of(plan, matrix_index(tensor_specs(plan.input.model), o), speed)) {
    const std::int64_t needed = fit_staleness(loads, every, o.refresh.stagger, o.refresh.workers, speed.step_s);
    lag.is_enough = lag.is_enough && needed > 0;
    lag.updates = std::max(lag.updates, needed > 0 ? needed : every - 1);
  }
  return lag;
}

std::string to_text(const RefreshLag& lag) {
  return fmt::format("used {} update{} after their copies", lag.updates, lag.updates == 1 ? "" : "s");
}

namespace {

// Returns the names of all matrices of the model, by index, with * for the layer.
std::vector<std::string> patterns_of(const Plan& plan, const MatrixIndex& index) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(plan.input.model)) {
    if (!is_matrix_optimized(spec, plan.input.optimizer)) continue;
    const auto first = static_cast<std::size_t>(index.at(spec.name));
    names.resize(std::max(names.size(), first + matrix_parts(spec, plan.input.optimizer).size()));
    std::fill(names.begin() + static_cast<std::ptrdiff_t>(first), names.end(), name_of_all_layers(spec));
  }
  return names;
}

double moved_bytes(const MatrixOptions& options, const RefreshLoad& load) {
  const RefreshNeeds needs =
      refresh_needs(options, static_cast<std::size_t>(load.rows), static_cast<std::size_t>(load.cols));
  return static_cast<double>(needs.results + needs.orders + needs.copies);
}

ExecutorCost cost_of(const Plan& plan, const RefreshLoad& load, double every) {
  const OptimizerOptions& o = plan.input.optimizer;
  constexpr double giga = 1e9;
  ExecutorCost cost;
  cost.link_s = moved_bytes(*o.matrix, load) / (*plan.input.machine.host_bandwidth * giga);
  cost.worker_s = load.seconds();
  cost.alone_s = load.alone(o.refresh.workers);
  cost.device_s = refresh_seconds(*o.matrix, load.rows, load.cols, plan.input.machine);
  cost.every = every;
  return cost;
}

// Adds a matrix to the row of its equals.
void add_row(const std::string& pattern, const RefreshLoad& load, double bytes, const ExecutorCost& cost,
             RefreshExecutors& all) {
  for (RefreshExecutors::Row& row : all.table)
    if (row.pattern == pattern && row.cost == cost) {
      ++row.matrices;
      row.in_update += all.in_update[static_cast<std::size_t>(load.index)];
      return;
    }
  const std::int64_t in_update = all.in_update[static_cast<std::size_t>(load.index)];
  all.table.push_back({pattern, load.rows, load.cols, bytes, cost, 1, in_update});
}

}  // namespace

std::optional<double> declared_flops(const MachineOptions& machine) {
  constexpr double giga = 1e9;
  return machine.worker_gflops ? std::optional(*machine.worker_gflops * giga) : std::nullopt;
}

RefreshExecutors choose_executors(const Plan& plan, const RefreshSpeed& speed, const RefreshPeriods& periods) {
  const OptimizerOptions& o = plan.input.optimizer;
  require_link(o, plan.input.machine);
  const MatrixIndex index = matrix_index(tensor_specs(plan.input.model), o);
  const std::vector<std::string> patterns = patterns_of(plan, index);
  const ExecutorRoom room{o.refresh.workers, o.matrix->refresh_staleness, speed.step_s};
  const auto cost = [&](const RefreshLoad& load) {
    const bool own = !periods.of.empty();
    return cost_of(
        plan, load,
        static_cast<double>(own ? periods.of[static_cast<std::size_t>(load.index)] : o.matrix->refresh_every));
  };
  RefreshExecutors all;
  all.in_update.resize(patterns.size(), 0);
  std::map<std::int64_t, RefreshLoad> one_of_each;
  for (const std::vector<RefreshLoad>& loads : loads_of(plan, index, speed)) {
    std::vector<ExecutorCost> costs;
    for (const RefreshLoad& load : loads) costs.push_back(cost(load));
    const std::vector<bool> chosen = choose_executors(costs, room);
    for (std::size_t i = 0; i < loads.size(); ++i) {
      one_of_each.try_emplace(loads[i].index, loads[i]);
      if (chosen[i]) all.in_update[static_cast<std::size_t>(loads[i].index)] = 1;
    }
  }
  for (const auto& [place, load] : one_of_each)
    add_row(patterns[static_cast<std::size_t>(place)], load, moved_bytes(*o.matrix, load), cost(load), all);
  return all;
}

std::vector<std::string> table_lines(const RefreshExecutors& all) {
  constexpr const char* line = "{:44}{:>14}{:>10}{:>12}{:>12}{:>12}{:>12}  {}";
  std::vector<std::string> lines = {
      fmt::format(line, "refreshes of", "shape", "matrices", "bytes", "link s", "worker s", "device s", "chosen")};
  for (const RefreshExecutors::Row& row : all.table) {
    const auto seconds = [](double s) { return fmt::format("{:.3g}", s); };
    const std::string chosen = row.in_update == 0              ? "worker"
                               : row.in_update == row.matrices ? "device"
                                                               : fmt::format("{} by the device", row.in_update);
    lines.push_back(fmt::format(line, row.pattern, fmt::format("{} x {}", row.rows, row.cols), row.matrices,
                                seconds(row.bytes), seconds(row.cost.link_s), seconds(row.cost.worker_s),
                                seconds(row.cost.device_s), chosen));
  }
  return lines;
}

std::string to_text(const RefreshExecutors& all) {
  const auto in_update = std::count(all.in_update.begin(), all.in_update.end(), 1);
  return fmt::format("{} of {} matrices by workers, {} in the update", std::ssize(all.in_update) - in_update,
                     all.in_update.size(), in_update);
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
