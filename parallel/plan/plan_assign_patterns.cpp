#include "parallel/plan/plan_assign.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

namespace sestina {

namespace {

constexpr int most_nodes = 100'000;  // nodes of a search; beyond, its answer is the safe one

// Searches the fullest pattern within the capacity that `available` allows: depth first over the classes, largest
// counts first.
class Filler {
 public:
  Filler(const ItemClasses& items, const BinPattern& available, std::int64_t capacity)
      : items_(items), available_(available), capacity_(capacity), now_(items.classes(), 0), best_(now_) {}
  BinPattern fill() {
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
  const BinPattern& available_;
  std::int64_t capacity_, best_load_ = 0;
  BinPattern now_, best_;
  int nodes_ = 0;
};

BinPattern difference(const BinPattern& a, const BinPattern& b) {
  BinPattern out(a);
  for (std::size_t j = 0; j < a.size(); ++j) out[j] -= b[j];
  return out;
}

bool any(const BinPattern& p) {
  return std::any_of(p.begin(), p.end(), [](int n) { return n > 0; });
}

// An exchange: the full bin gives one item of a class to another bin for one of a smaller class, or for nothing (take =
// number of classes).
struct ItemExchange {
  std::size_t to = 0, give = 0, take = 0;
  std::int64_t moved = 0, fuller = 0;  // the load that moves; that of the fuller bin afterwards
};

// Returns the exchange after which the fuller of the two bins is the least full; among equals the first bin counts,
// then the largest items. give = number of classes: none makes the full bin less full.
ItemExchange best_exchange(const ItemClasses& items, const BinPattern& full, std::int64_t load,
                           const std::vector<LoadTree>& giving) {
  const std::size_t k = items.classes();
  ItemExchange best{0, k, k, 0, load};
  for (std::size_t give = 0; give < k; ++give)
    for (std::size_t take = give + 1; full[give] > 0 && take <= k; ++take) {
      const std::int64_t least = giving[take].least();
      if (least == LoadTree::none) continue;
      const std::int64_t moved = items.size[give] - (take < k ? items.size[take] : 0);
      const std::int64_t fuller = std::max(load - moved, least + moved);
      if (fuller > best.fuller || fuller >= load) continue;
      const std::size_t to = giving[take].first_within(fuller - moved);
      if (fuller < best.fuller || to < best.to) best = {to, give, take, moved, fuller};
    }
  return best;
}

// Packs the items that are left into the bins that are left: the fullest bins first, else longest first.
std::optional<Packing> pack_rest(const ItemClasses& items, BinPattern left, int bins, std::int64_t capacity) {
  const ItemClasses rest{items.size, left};
  Packing packing;
  for (int bin = 0; bin < bins; ++bin) {
    packing.push_back(any(left) ? Filler(items, left, capacity).fill() : BinPattern(left.size(), 0));
    left = difference(left, packing.back());
  }
  if (!any(left)) return packing;
  if (bins == 0) return std::nullopt;
  packing = pack_longest_first(rest, bins);
  improve(rest, packing);
  return largest_load(rest, packing) <= capacity ? std::optional(packing) : std::nullopt;
}

}  // namespace

std::int64_t ItemClasses::load(const BinPattern& pattern) const {
  std::int64_t sum = 0;
  for (std::size_t j = 0; j < classes(); ++j) sum += pattern[j] * size[j];
  return sum;
}

std::int64_t largest_load(const ItemClasses& items, const Packing& packing) {
  std::int64_t largest = 0;
  for (const BinPattern& bin : packing) largest = std::max(largest, items.load(bin));
  return largest;
}

Packing pack_longest_first(const ItemClasses& items, int bins) {
  Packing packing(static_cast<std::size_t>(bins), BinPattern(items.classes(), 0));
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
  const std::size_t k = items.classes(), bins = packing.size();
  std::vector<std::int64_t> load;
  std::int64_t total = 0;
  for (const BinPattern& bin : packing) {
    load.push_back(items.load(bin));
    total += load.back();
  }
  LoadTree fullest(bins);        // holds negative loads
  std::vector<LoadTree> giving;  // loads of the bins that hold an item of the class; k: all bins
  for (std::size_t j = 0; j <= k; ++j) giving.emplace_back(bins);
  const auto refresh = [&](std::size_t bin) {
    fullest.set(bin, -load[bin]);
    for (std::size_t j = 0; j <= k; ++j) giving[j].set(bin, j == k || packing[bin][j] > 0 ? load[bin] : LoadTree::none);
  };
  for (std::size_t bin = 0; bin < bins; ++bin) refresh(bin);
  const std::int64_t mean = (total + static_cast<std::int64_t>(bins) - 1) / static_cast<std::int64_t>(bins);
  for (std::size_t round = 0; round < 4 * bins; ++round) {
    const std::size_t from = fullest.first_within(fullest.least());
    if (load[from] <= mean) return;
    const ItemExchange best = best_exchange(items, packing[from], load[from], giving);
    if (best.give == k) return;
    --packing[from][best.give];
    ++packing[best.to][best.give];
    if (best.take < k) {
      --packing[best.to][best.take];
      ++packing[from][best.take];
    }
    load[from] -= best.moved;
    load[best.to] += best.moved;
    refresh(from);
    refresh(best.to);
  }
}

std::optional<Packing> round_patterns(const ItemClasses& items, const PatternProgram& program, int bins,
                                      std::int64_t capacity) {
  constexpr int levels = 4;  // whole patterns given back, of each, to leave more freedom to the rest
  constexpr double rounding = 1e-6;
  for (int back = 0; back < levels; ++back) {
    Packing packing;
    BinPattern left = items.count;
    for (std::size_t p = 0; p < program.patterns.size(); ++p)
      for (int n = static_cast<int>(program.used[p] + rounding) - back; n > 0; --n) {
        const BinPattern& pattern = program.patterns[p];
        const BinPattern after = difference(left, pattern);
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
