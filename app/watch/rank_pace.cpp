#include "app/watch/rank_pace.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr double slow_factor = 1.2, least_excess = 0.25;  // seconds

PaceSeconds divided(const PaceSeconds& sum, std::int64_t updates) {
  const auto n = static_cast<double>(updates);
  return {sum.compute / n, sum.exchange / n, sum.disk / n};
}

}  // namespace

PaceSeconds pace_of(const PhaseSeconds& seconds) {
  const auto of = [&seconds](Phase phase) { return seconds[static_cast<std::size_t>(phase)]; };
  return {of(Phase::forward_backward) + of(Phase::optimizer) + of(Phase::refresh),
          of(Phase::reduce) + of(Phase::gather), of(Phase::data)};
}

RankPace::RankPace(int ranks) : sums_(static_cast<std::size_t>(ranks)) { scratch_.reserve(sums_.size()); }

void RankPace::add(std::span<const PhaseSeconds> of_ranks) {
  SESTINA_REQUIRE(of_ranks.size() == sums_.size(), "seconds of {} ranks, not {}", of_ranks.size(), sums_.size());
  for (std::size_t rank = 0; rank < sums_.size(); ++rank) {
    const PaceSeconds one = pace_of(of_ranks[rank]);
    sums_[rank].compute += one.compute;
    sums_[rank].exchange += one.exchange;
    sums_[rank].disk += one.disk;
  }
  ++updates_;
}

double RankPace::median(double PaceSeconds::*part) {
  scratch_.clear();
  for (const PaceSeconds& sum : sums_) scratch_.push_back(sum.*part);
  const auto middle = scratch_.begin() + static_cast<std::ptrdiff_t>((scratch_.size() - 1) / 2);
  std::nth_element(scratch_.begin(), middle, scratch_.end());
  return *middle;
}

std::optional<SlowRank> RankPace::take() {
  std::optional<SlowRank> slow;
  if (updates_ > 0 && sums_.size() > 1) {
    const auto slowest = std::max_element(
        sums_.begin(), sums_.end(), [](const PaceSeconds& a, const PaceSeconds& b) { return a.compute < b.compute; });
    const PaceSeconds middle{median(&PaceSeconds::compute), median(&PaceSeconds::exchange), median(&PaceSeconds::disk)};
    if (slowest->compute > std::max(slow_factor * middle.compute, middle.compute + least_excess))
      slow = SlowRank{static_cast<int>(slowest - sums_.begin()), updates_, divided(*slowest, updates_),
                      divided(middle, updates_)};
  }
  std::fill(sums_.begin(), sums_.end(), PaceSeconds());
  updates_ = 0;
  return slow;
}

std::string to_text(const SlowRank& slow) {
  return fmt::format(
      "rank {} computes {:.2g} times as long as the median of the ranks: {:.3g} s of an update, not {:.3g} s, over {} "
      "updates (exchange {:.3g} s, median {:.3g} s; disk {:.3g} s, median {:.3g} s)",
      slow.rank, slow.own.compute / slow.median.compute, slow.own.compute, slow.median.compute, slow.updates,
      slow.own.exchange, slow.median.exchange, slow.own.disk, slow.median.disk);
}

}  // namespace sestina
