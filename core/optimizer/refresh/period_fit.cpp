#include "core/optimizer/refresh/period_fit.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>

#include "core/optimizer/base/routing.hpp"

namespace sestina {
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

bool is_in_time(const std::vector<RefreshLoad>& loads, const std::vector<std::int64_t>& periods, int workers,
                std::int64_t staleness, double step_s) {
  if (loads.empty()) return true;
  constexpr std::int64_t rounds = 3;  // of the longest period: periods differ, and fall together now and then
  const std::int64_t end = rounds * *std::max_element(periods.begin(), periods.end());
  constexpr double forever = std::numeric_limits<double>::infinity();
  const double time = static_cast<double>(staleness) * step_s;
  std::vector<double> patience;
  for (const RefreshLoad& load : loads) patience.push_back(std::max(time, load.alone(workers)));
  std::priority_queue<double, std::vector<double>, std::greater<>> free;  // when each worker has nothing in hand
  for (int w = 0; w < workers; ++w) free.push(0);
  std::priority_queue<Job> queue;
  for (std::int64_t t = 0; t < end; ++t) {
    const double now = static_cast<double>(t) * step_s, next = t + 1 < end ? now + step_s : forever;
    for (std::size_t i = 0; i < loads.size(); ++i)
      if ((t + refresh_phase(loads[i].index, periods[i])) % periods[i] == 0)
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
