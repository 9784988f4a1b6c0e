#include "core/optimizer/refresh/auto_period.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/base/routing.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {

namespace {

constexpr std::int64_t first_side = 256;
constexpr int first_updates = 2, measured_updates = 5;

// Makes refreshes inline, and due at every update.
MatrixOptions always_due(MatrixOptions options) {
  options.refresh_every = 1;
  options.refresh_staleness = 0;
  options.refresh_drift = 0;
  options.tier = options.state_tier = Tier::device;
  options.field_tiers.clear();
  const MatrixKind& kind = *find_matrix_kind(options.kind);
  if (kind.refresh_always) kind.refresh_always(options);
  return options;
}

// Returns the seconds of a refresh.
double time_refresh(const MatrixOptions& options, std::size_t m, std::size_t n) {
  const Serial exec{Kokkos::NewInstance{}};
  const std::size_t scratch =
      bytes_taken<Serial>([&](Workspace<Serial>& counter) { declare_update<Serial>(counter, options, m, n); });
  Stream<Serial> stream{.exec = exec, .gemm = Gemm<Serial>(exec), .workspace = Workspace<Serial>(scratch)};
  const auto optimizer = make_matrix_optimizer<Serial>(exec, options, {"/optimizer/measured", m, n, 0});
  std::vector<float> gradient(m * n), master(m * n, 0);
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<double> seconds;
  for (int update = 1; update <= first_updates + measured_updates; ++update) {
    for (float& g : gradient) g = value(random);
    optimizer->step(stream, {.t = update},
                    {"measured",
                     Matrix<const float, Serial>(gradient.data(), m, n),
                     Matrix<float, Serial>(master.data(), m, n),
                     {}});
    const double spent = std::exchange(stream.refresh.seconds.waits, 0.0);
    if (update > first_updates) seconds.push_back(spent);
  }
  std::nth_element(seconds.begin(), seconds.begin() + measured_updates / 2, seconds.end());
  return seconds[measured_updates / 2];
}

}  // namespace

RefreshRate measure_refresh_rate(const MatrixOptions& asked, std::int64_t rows, std::int64_t cols,
                                 double most_seconds) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  const MatrixOptions options = always_due(asked);
  const std::int64_t longest = std::max(rows, cols);
  RefreshRate rate{rows, cols, 0, 0, infinite};
  double spent = 0, last = 0, last_flops = 0, falls_to = 1;  // last: seconds that the size before took
  for (std::int64_t side = std::min(first_side, longest), done = 0; done < longest;) {
    const std::int64_t m = std::min(rows, side), n = std::min(cols, side);
    const double flops = refresh_flops(options, m, n);
    if (flops == 0) break;
    if (done > 0 && spent + last * flops / last_flops > most_seconds) {
      rate.flops *= std::pow(falls_to, std::log2(static_cast<double>(longest) / static_cast<double>(done)));
      break;
    }
    double seconds = 0;
    last = 0;
    {
      const SecondsSpent here(last);
      seconds = time_refresh(options, static_cast<std::size_t>(m), static_cast<std::size_t>(n));
    }
    const double measured = seconds > 0 ? flops / seconds : infinite;
    falls_to = measured < rate.flops && done > 0 ? measured / rate.flops : 1;
    rate = {rows, cols, m, n, measured};
    spent += last;
    last_flops = flops;
    done = std::exchange(side, std::min(2 * side, longest));
  }
  return rate;
}

namespace {

constexpr std::int64_t longest_period = 1 << 16;

struct Job {
  double deadline, seconds;
  bool operator<(const Job& other) const {  // the next one of a queue is the largest
    return std::tie(other.deadline, seconds) < std::tie(deadline, other.seconds);
  }
};

std::vector<std::int64_t> scaled(const std::vector<RefreshLoad>& loads, double longest, std::int64_t scale,
                                 std::int64_t least) {
  std::vector<std::int64_t> periods;
  for (const RefreshLoad& load : loads)
    periods.push_back(std::max(
        least, static_cast<std::int64_t>(std::ceil(static_cast<double>(scale) * std::sqrt(load.seconds() / longest)))));
  return periods;
}

}  // namespace

double RefreshLoad::seconds() const { return std::accumulate(jobs.begin(), jobs.end(), 0.0); }

double RefreshLoad::alone(int workers) const {
  std::vector<double> longest_first = jobs, busy(static_cast<std::size_t>(workers), 0);
  std::sort(longest_first.begin(), longest_first.end(), std::greater<>());
  for (const double job : longest_first) *std::min_element(busy.begin(), busy.end()) += job;
  return *std::max_element(busy.begin(), busy.end());
}

namespace {

// Each matrix is due at updates t with (t + phase) mod period = 0.
bool plays_in_time(const std::vector<RefreshLoad>& loads, const std::vector<std::int64_t>& periods,
                   const std::vector<std::int64_t>& phases, int workers, std::int64_t staleness, double step_s) {
  if (loads.empty()) return true;
  constexpr std::int64_t rounds = 3;  // of the longest period: periods differ, and fall together now and then
  const std::int64_t end = rounds * *std::max_element(periods.begin(), periods.end());
  constexpr double forever = std::numeric_limits<double>::infinity();
  const double time = static_cast<double>(staleness) * step_s;
  std::vector<double> patience;
  for (const RefreshLoad& load : loads) patience.push_back(std::max(time, load.alone(workers)));
  std::priority_queue<double, std::vector<double>, std::greater<>> free;  // times at which workers have nothing in hand
  for (int w = 0; w < workers; ++w) free.push(0);
  std::priority_queue<Job> queue;
  for (std::int64_t t = 0; t < end; ++t) {
    const double now = static_cast<double>(t) * step_s, next = t + 1 < end ? now + step_s : forever;
    for (std::size_t i = 0; i < loads.size(); ++i)
      if ((t + phases[i]) % periods[i] == 0)
        for (const double seconds : loads[i].jobs) queue.push({now + patience[i], seconds});
    while (!queue.empty() && free.top() < next) {
      const Job job = queue.top();
      const double done = std::max(free.top(), now) + job.seconds;
      if (done > job.deadline * (1 + 1e-12)) return false;
      queue.pop(), free.pop(), free.push(done);
    }
  }
  return true;
}

}  // namespace

bool is_in_time(const std::vector<RefreshLoad>& loads, const std::vector<std::int64_t>& periods, int workers,
                std::int64_t staleness, double step_s) {
  std::vector<std::int64_t> phases;
  for (std::size_t i = 0; i < loads.size(); ++i) phases.push_back(refresh_phase(loads[i].index, periods[i]));
  return plays_in_time(loads, periods, phases, workers, staleness, step_s);
}

std::int64_t fit_staleness(const std::vector<RefreshLoad>& loads, std::int64_t every, bool staggered, int workers,
                           double step_s) {
  const std::vector<std::int64_t> periods(loads.size(), every);
  std::vector<std::int64_t> phases;
  double alone = 0;
  for (const RefreshLoad& load : loads) {
    phases.push_back(staggered ? load.index : 0);
    alone = std::max(alone, load.alone(workers));
  }
  const auto good = [&](std::int64_t s) {
    return static_cast<double>(s) * step_s >= alone && plays_in_time(loads, periods, phases, workers, s, step_s);
  };
  std::int64_t low = 0, high = every - 1;  // low is too little
  if (high < 1 || !good(high)) return 0;
  while (low + 1 < high) {
    const std::int64_t middle = low + (high - low) / 2;
    (good(middle) ? high : low) = middle;
  }
  return high;
}

namespace {

// Gives refreshes to the update until what is left needs no more than `room` of a resource in each update; `shared`: so
// many have the resource, and an update waits for one share of what is too much.
template <class Need>
void relieve(const std::vector<ExecutorCost>& costs, double room, double shared, const Need& need,
             std::vector<bool>& in_update) {
  std::vector<std::size_t> order;
  double load = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (in_update[i] || need(costs[i]) <= 0) continue;
    load += need(costs[i]) / costs[i].every;
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return costs[a].device_s * need(costs[b]) < costs[b].device_s * need(costs[a]);
  });
  for (const std::size_t i : order) {
    const double excess = load - room, freed = need(costs[i]) / costs[i].every;
    if (excess <= 0) return;
    if (costs[i].device_s / costs[i].every >= std::min(excess, freed) / shared) continue;
    in_update[i] = true;
    load -= freed;
  }
}

}  // namespace

std::vector<bool> choose_executors(const std::vector<ExecutorCost>& costs, const ExecutorRoom& room) {
  std::vector<bool> in_update(costs.size(), false);
  const double time = static_cast<double>(room.staleness) * room.step_s;
  for (std::size_t i = 0; i < costs.size(); ++i)
    in_update[i] = costs[i].device_s < costs[i].link_s + costs[i].alone_s - time;
  const auto workers = static_cast<double>(room.workers);
  relieve(
      costs, room.step_s, 1, [](const ExecutorCost& cost) { return cost.link_s; }, in_update);
  relieve(
      costs, workers * room.step_s, workers, [](const ExecutorCost& cost) { return cost.worker_s; }, in_update);
  return in_update;
}

std::vector<std::int64_t> fit_periods(const std::vector<RefreshLoad>& loads, int workers, std::int64_t staleness,
                                      double step_s) {
  double longest = 0;
  for (const RefreshLoad& load : loads) longest = std::max(longest, load.seconds());
  const std::int64_t least = staleness + 1;
  if (longest == 0) return std::vector<std::int64_t>(loads.size(), least);
  const auto periods = [&](std::int64_t scale) { return scaled(loads, longest, scale, least); };
  const auto good = [&](std::int64_t scale) { return is_in_time(loads, periods(scale), workers, staleness, step_s); };
  std::int64_t high = least;
  while (high < longest_period && !good(high)) high *= 2;
  if (high == least) return periods(high);
  std::int64_t low = high / 2;  // too short
  while (low + 1 < high) {
    const std::int64_t middle = low + (high - low) / 2;
    (good(middle) ? high : low) = middle;
  }
  return periods(high);
}

}  // namespace sestina
