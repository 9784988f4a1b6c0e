#include "io/tokens/sample_set_order.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace sestina {
namespace {

constexpr std::uint64_t period_length = 55440;  // divisible by 1 to 12: usual ratios are met exactly

// Largest remainders (Hamilton's apportionment): whole slots that add up to the period.
std::vector<std::uint64_t> apportion(const std::vector<double>& weights, std::uint64_t period) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::uint64_t> slots;
  std::vector<std::pair<double, std::size_t>> remainders;
  for (std::size_t s = 0; s < weights.size(); ++s) {
    const double exact = weights[s] / sum * static_cast<double>(period);
    slots.push_back(static_cast<std::uint64_t>(exact));
    remainders.emplace_back(std::floor(exact) - exact, s);
  }
  std::sort(remainders.begin(), remainders.end());
  const std::uint64_t given = std::accumulate(slots.begin(), slots.end(), std::uint64_t{0});
  for (std::uint64_t i = 0; i < period - given; ++i) ++slots[remainders[i].second];
  return slots;
}

}  // namespace

SourceBlend::SourceBlend(const std::vector<double>& weights) {
  const std::uint64_t period = weights.size() == 1 ? 1 : period_length;
  for (std::size_t s = 0; s < weights.size(); ++s)
    if (!(weights[s] > 0) || !std::isfinite(weights[s]))
      fail(ExitCode::bad_deck, "weight of data source {} is {}, allowed are positive numbers", s + 1, weights[s]);
  slots_ = apportion(weights, period);
  // The j-th of n slots of a source belongs at (2 j + 1) / 2 n of the period; in that order deficits stay smallest.
  std::vector<std::tuple<double, std::uint32_t, std::uint32_t>> order;
  for (std::uint32_t s = 0; s < weights.size(); ++s) {
    if (slots_[s] == 0)
      fail(ExitCode::bad_deck, "weight of data source {} is {}, below 1/{} of the sum", s + 1, weights[s], period);
    for (std::uint32_t j = 0; j < slots_[s]; ++j)
      order.emplace_back((2.0 * j + 1) / (2.0 * static_cast<double>(slots_[s])), s, j);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [when, source, rank] : order) period_.push_back({source, rank});
}

SourceBlend::Place SourceBlend::place(std::uint64_t sample) const {
  const Slot slot = period_[sample % period_.size()];
  return {slot.source, sample / period_.size() * slots_[slot.source] + slot.rank};
}

double SourceBlend::share(std::size_t source) const {
  return static_cast<double>(slots_[source]) / static_cast<double>(period_.size());
}

std::uint64_t window_of(std::uint64_t seed, std::size_t source, std::uint64_t ordinal, std::uint64_t windows,
                        bool shuffle) {
  if (!shuffle) return ordinal % windows;
  const std::uint64_t epoch = ordinal / windows;
  const Philox key = philox(stream_of(seed, "data"), source, epoch);
  return permute(std::uint64_t{key[1]} << 32 | key[0], ordinal % windows, windows);
}

}  // namespace sestina
