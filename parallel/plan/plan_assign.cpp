#include "parallel/plan/plan_assign.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <queue>

#include "parallel/plan/load_patterns.hpp"

namespace sestina {
namespace {

struct Classed {
  ItemClasses classes;
  std::vector<std::vector<int>> items;  // by class, in the order given; items without cost are in none
  std::vector<int> free;                // items without cost
};

Classed classify(const std::vector<std::int64_t>& cost) {
  Classed out;
  std::map<std::int64_t, std::vector<int>, std::greater<>> by_cost;
  for (std::size_t i = 0; i < cost.size(); ++i)
    (cost[i] > 0 ? by_cost[cost[i]] : out.free).push_back(static_cast<int>(i));
  for (auto& [size, items] : by_cost) {
    out.classes.size.push_back(size);
    out.classes.count.push_back(static_cast<int>(items.size()));
    out.items.push_back(std::move(items));
  }
  return out;
}

// Deals the items of each class round the bins that want some, beginning where the class before ended.
std::vector<int> deal(const Classed& classed, Packing packing, std::size_t items) {
  std::vector<int> bin_of(items, 0);
  std::size_t bin = 0;
  for (std::size_t j = 0; j < classed.classes.classes(); ++j)
    for (const int item : classed.items[j]) {
      while (packing[bin][j] == 0) bin = (bin + 1) % packing.size();
      --packing[bin][j];
      bin_of[static_cast<std::size_t>(item)] = static_cast<int>(bin);
      bin = (bin + 1) % packing.size();
    }
  for (std::size_t i = 0; i < classed.free.size(); ++i)
    bin_of[static_cast<std::size_t>(classed.free[i])] = static_cast<int>(i % packing.size());
  return bin_of;
}

// Lowers `largest` and raises `bound` until they meet, or until no capacity between them is decided.
void search(const ItemClasses& items, int bins, Packing& packing, std::int64_t& largest, std::int64_t& bound) {
  constexpr int most_tries = 40;
  constexpr std::int64_t fine = 1'000'000;  // a millionth of the load is near enough to be left
  constexpr double rounding = 1e-7;
  std::int64_t low = bound;  // what is below is proven out of reach, or was tried in vain
  bool at_low = true;        // a bound is often reached itself
  for (int tries = 0; tries < most_tries && low < largest && largest - bound > bound / fine; ++tries) {
    const std::int64_t capacity = at_low ? low : low + (largest - low) / 2;
    const double enough = bins + rounding;
    const PatternProgram program = solve_patterns(items, capacity, enough);
    if (program.bound > enough) {
      low = bound = next_load(items, capacity);
      at_low = tries % 4 == 0;
      continue;
    }
    at_low = false;
    if (auto found = round_patterns(items, program, bins, capacity)) {
      packing = std::move(*found);
      largest = largest_load(items, packing);
    } else {
      low = capacity + 1;
    }
  }
  if (bound > largest) bound = largest;
}

}  // namespace

std::int64_t load_bound(const std::vector<std::int64_t>& cost, int bins) {
  if (cost.empty()) return 0;
  // Among the j * bins + 1 largest items some bin gets j + 1: at least the smallest j + 1 of them.
  std::vector<std::int64_t> sorted(cost);
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const std::int64_t total = std::accumulate(sorted.begin(), sorted.end(), std::int64_t{0});
  std::int64_t bound = std::max(sorted.front(), (total + bins - 1) / bins);
  const auto m = static_cast<std::size_t>(bins);
  std::vector<std::int64_t> first(sorted.size() + 1, 0);  // sums of the first n
  std::partial_sum(sorted.begin(), sorted.end(), first.begin() + 1);
  for (std::size_t j = 1; j * m < sorted.size(); ++j) bound = std::max(bound, first[j * m + 1] - first[j * m - j]);
  return bound;
}

Assignment assign_longest_first(const std::vector<std::int64_t>& cost, int bins) {
  std::vector<int> order(cost.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int item) { return cost[static_cast<std::size_t>(item)]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return at(a) > at(b); });
  using Slot = std::pair<std::int64_t, int>;
  std::priority_queue<Slot, std::vector<Slot>, std::greater<>> least;
  for (int bin = 0; bin < bins; ++bin) least.emplace(0, bin);
  Assignment out{std::vector<int>(cost.size(), 0), 0, load_bound(cost, bins)};
  for (const int item : order) {
    const auto [load, bin] = least.top();
    least.pop();
    out.bin[static_cast<std::size_t>(item)] = bin;
    least.emplace(load + at(item), bin);
    out.largest = std::max(out.largest, load + at(item));
  }
  return out;
}

Assignment assign_optimal(const std::vector<std::int64_t>& cost, int bins) {
  const Classed classed = classify(cost);
  const ItemClasses& items = classed.classes;
  constexpr std::size_t most_classes = 16;  // beyond, patterns are too many, and packing is easy
  Assignment out{std::vector<int>(cost.size(), 0), 0, load_bound(cost, bins)};
  Packing packing = pack_longest_first(items, bins);
  out.largest = largest_load(items, packing);
  if (out.largest > out.bound) {
    improve(items, packing);
    out.largest = largest_load(items, packing);
  }
  if (out.largest > out.bound && items.classes() <= most_classes) search(items, bins, packing, out.largest, out.bound);
  out.bin = deal(classed, std::move(packing), cost.size());
  return out;
}

}  // namespace sestina
