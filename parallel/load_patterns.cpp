#include "parallel/load_patterns.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

namespace sestina {
namespace {

constexpr int most_nodes = 100'000;  // of a search; beyond, its answer is the safe one

// Depth first over the classes, largest counts first: the fullest pattern within the capacity that `available` allows.
class Filler {
 public:
  Filler(const ItemClasses& items, const Pattern& available, std::int64_t capacity)
      : items_(items), available_(available), capacity_(capacity), now_(items.classes(), 0), best_(now_) {}
  Pattern fill() {
    // The largest item that is left must go somewhere.
    std::size_t first = 0;
    while (first < available_.size() && available_[first] == 0) ++first;
    if (first == available_.size() || items_.size[first] > capacity_) return best_;
    visit(first, 0, 1);
    return best_;
  }

 private:
  void visit(std::size_t j, std::int64_t load, int least) {
    if (load > best_load_) {
      best_load_ = load;
      best_ = now_;
    }
    if (j == available_.size() || best_load_ == capacity_ || ++nodes_ > most_nodes) return;
    const auto most = static_cast<int>(std::min<std::int64_t>(available_[j], (capacity_ - load) / items_.size[j]));
    for (int n = most; n >= least; --n) {
      now_[j] = n;
      visit(j + 1, load + n * items_.size[j], 0);
    }
    now_[j] = 0;
  }

  const ItemClasses& items_;
  const Pattern& available_;
  std::int64_t capacity_, best_load_ = 0;
  Pattern now_, best_;
  int nodes_ = 0;
};

Pattern difference(const Pattern& a, const Pattern& b) {
  Pattern out(a);
  for (std::size_t j = 0; j < a.size(); ++j) out[j] -= b[j];
  return out;
}

bool any(const Pattern& p) {
  return std::any_of(p.begin(), p.end(), [](int n) { return n > 0; });
}

// The items that are left into the bins that are left: the fullest bins first, else longest first.
std::optional<Packing> pack_rest(const ItemClasses& items, Pattern left, int bins, std::int64_t capacity) {
  const ItemClasses rest{items.size, left};
  Packing packing;
  for (int bin = 0; bin < bins; ++bin) {
    packing.push_back(any(left) ? Filler(items, left, capacity).fill() : Pattern(left.size(), 0));
    left = difference(left, packing.back());
  }
  if (!any(left)) return packing;
  if (bins == 0) return std::nullopt;
  packing = pack_longest_first(rest, bins);
  improve(rest, packing);
  return largest_load(rest, packing) <= capacity ? std::optional(packing) : std::nullopt;
}

}  // namespace

std::int64_t ItemClasses::load(const Pattern& pattern) const {
  std::int64_t sum = 0;
  for (std::size_t j = 0; j < classes(); ++j) sum += pattern[j] * size[j];
  return sum;
}

std::int64_t largest_load(const ItemClasses& items, const Packing& packing) {
  std::int64_t largest = 0;
  for (const Pattern& bin : packing) largest = std::max(largest, items.load(bin));
  return largest;
}

Packing pack_longest_first(const ItemClasses& items, int bins) {
  Packing packing(static_cast<std::size_t>(bins), Pattern(items.classes(), 0));
  using Slot = std::pair<std::int64_t, std::size_t>;
  std::priority_queue<Slot, std::vector<Slot>, std::greater<>> least;
  for (std::size_t bin = 0; bin < packing.size(); ++bin) least.emplace(0, bin);
  for (std::size_t j = 0; j < items.classes(); ++j)
    for (int n = 0; n < items.count[j]; ++n) {
      const auto [load, bin] = least.top();
      least.pop();
      ++packing[bin][j];
      least.emplace(load + items.size[j], bin);
    }
  return packing;
}

void improve(const ItemClasses& items, Packing& packing) {
  std::vector<std::int64_t> load;
  std::int64_t total = 0;
  for (const Pattern& bin : packing) {
    load.push_back(items.load(bin));
    total += load.back();
  }
  const std::size_t k = items.classes();
  const auto bins = static_cast<std::int64_t>(packing.size());
  for (std::size_t round = 0; round < 4 * packing.size(); ++round) {
    const auto from = static_cast<std::size_t>(std::max_element(load.begin(), load.end()) - load.begin());
    if (load[from] <= (total + bins - 1) / bins) return;
    std::int64_t best = load[from];  // of the fuller of the two afterwards
    std::size_t best_to = 0, best_give = k, best_take = k;
    for (std::size_t to = 0; to < packing.size(); ++to)
      for (std::size_t give = 0; to != from && give < k; ++give) {
        if (packing[from][give] == 0) continue;
        for (std::size_t take = give + 1; take <= k; ++take) {  // k: nothing in return
          if (take < k && packing[to][take] == 0) continue;
          const std::int64_t moved = items.size[give] - (take < k ? items.size[take] : 0);
          const std::int64_t fuller = std::max(load[from] - moved, load[to] + moved);
          if (fuller >= best) continue;
          best = fuller;
          best_to = to;
          best_give = give;
          best_take = take;
        }
      }
    if (best_give == k) return;
    const std::int64_t moved = items.size[best_give] - (best_take < k ? items.size[best_take] : 0);
    --packing[from][best_give];
    ++packing[best_to][best_give];
    if (best_take < k) {
      --packing[best_to][best_take];
      ++packing[from][best_take];
    }
    load[from] -= moved;
    load[best_to] += moved;
  }
}

std::optional<Packing> round_patterns(const ItemClasses& items, const PatternProgramme& programme, int bins,
                                      std::int64_t capacity) {
  constexpr int levels = 4;  // whole patterns given back, of each, to leave more freedom to the rest
  constexpr double rounding = 1e-6;
  for (int back = 0; back < levels; ++back) {
    Packing packing;
    Pattern left = items.count;
    for (std::size_t p = 0; p < programme.patterns.size(); ++p)
      for (int n = static_cast<int>(programme.used[p] + rounding) - back; n > 0; --n) {
        const Pattern& pattern = programme.patterns[p];
        const Pattern after = difference(left, pattern);
        if (static_cast<int>(packing.size()) == bins ||
            std::any_of(after.begin(), after.end(), [](int count) { return count < 0; }))
          break;
        packing.push_back(pattern);
        left = after;
      }
    const auto rest = pack_rest(items, left, bins - static_cast<int>(packing.size()), capacity);
    if (!rest) continue;
    packing.insert(packing.end(), rest->begin(), rest->end());
    return packing;
  }
  return pack_rest(items, items.count, bins, capacity);
}

std::int64_t next_load(const ItemClasses& items, std::int64_t load) {
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  int nodes = 0;
  const std::function<void(std::size_t, std::int64_t)> visit = [&](std::size_t j, std::int64_t sum) {
    if (sum >= best || ++nodes > most_nodes) return;
    if (sum > load) {
      best = sum;
      return;
    }
    if (j == items.classes()) return;
    const auto most = static_cast<int>(std::min<std::int64_t>(items.count[j], (load - sum) / items.size[j] + 1));
    const bool last = j + 1 == items.classes();
    for (int n = most; n >= (last ? most : 0); --n) visit(j + 1, sum + n * items.size[j]);
  };
  visit(0, 0);
  return nodes > most_nodes || best == std::numeric_limits<std::int64_t>::max() ? load + 1 : best;
}

}  // namespace sestina
