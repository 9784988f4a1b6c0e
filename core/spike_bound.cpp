#include "core/spike_bound.hpp"

#include <algorithm>
#include <cmath>

namespace sestina {
namespace {

// Returns the median, the upper one of two, and reorders the values.
double median_of(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::optional<double> spike_bound(const std::vector<double>& last, const SpikeRule& rule,
                                  std::vector<double>& scratch) {
  if (last.empty() || 2 * last.size() < static_cast<std::size_t>(rule.window)) return std::nullopt;
  constexpr double deviation_of_mad = 1.4826, least_share = 0.01;
  scratch.assign(last.begin(), last.end());
  const double median = median_of(scratch);
  for (double& value : scratch) value = std::abs(value - median);
  const double deviation = std::max(deviation_of_mad * median_of(scratch), least_share * std::abs(median));
  return median + rule.factor * deviation;
}

SpikeWatch::SpikeWatch(const SpikeRule& rule) : rule_(rule) {
  const auto room = static_cast<std::size_t>(rule.window) + 1;
  for (std::vector<double>& values : last_) values.reserve(room);
  scratch_.reserve(room);
}

std::optional<Spike> SpikeWatch::find(const WatchedValues& now) {
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (!std::isfinite(now[i])) continue;
    const std::optional<double> bound = spike_bound(last_[i], rule_, scratch_);
    if (bound && now[i] > *bound) return Spike{watched_names[i], now[i], *bound};
  }
  return std::nullopt;
}

void SpikeWatch::add(const WatchedValues& now) {
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (!std::isfinite(now[i])) continue;
    last_[i].push_back(now[i]);
    if (last_[i].size() > static_cast<std::size_t>(rule_.window)) last_[i].erase(last_[i].begin());
  }
}

void SpikeWatch::restore(std::size_t name, const std::vector<double>& last) {
  const auto most = static_cast<std::size_t>(rule_.window);
  const std::size_t begin = last.size() - std::min(last.size(), most);
  last_[name].assign(last.begin() + static_cast<std::ptrdiff_t>(begin), last.end());
}

}  // namespace sestina
