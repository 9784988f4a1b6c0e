#include "parallel/plan/plan_assign.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

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
void deal(const std::vector<std::vector<int>>& items, Packing packing, std::vector<int>& bin_of) {
  std::size_t bin = 0;
  for (std::size_t j = 0; j < items.size(); ++j)
    for (const int item : items[j]) {
      while (packing[bin][j] == 0) bin = (bin + 1) % packing.size();
      --packing[bin][j];
      bin_of[static_cast<std::size_t>(item)] = static_cast<int>(bin);
      bin = (bin + 1) % packing.size();
    }
}

// Lowers `largest` and raises `bound` until they meet, or until no capacity between them is decided.
void search(const ItemClasses& items, int bins, Packing& packing, std::int64_t& largest, std::int64_t& bound) {
  constexpr int most_tries = 40;
  constexpr std::int64_t fine = 1'000'000;  // a millionth of the load is near enough to be left
  constexpr double rounding = 1e-7;
  std::int64_t low = bound;  // capacities below are proven out of reach, or were tried in vain
  bool at_low = true;        // the bound itself is often reached
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
  std::vector<std::int64_t> first(sorted.size() + 1, 0);  // first[n]: the sum of the first n
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
  constexpr std::size_t most_classes = 16;  // with more there are too many patterns, and packing is easy
  Assignment out{std::vector<int>(cost.size(), 0), 0, load_bound(cost, bins)};
  Packing packing = pack_longest_first(items, bins);
  out.largest = largest_load(items, packing);
  if (out.largest > out.bound) {
    improve(items, packing);
    out.largest = largest_load(items, packing);
  }
  if (out.largest > out.bound && items.classes() <= most_classes) search(items, bins, packing, out.largest, out.bound);
  deal(classed.items, std::move(packing), out.bin);
  for (std::size_t i = 0; i < classed.free.size(); ++i)
    out.bin[static_cast<std::size_t>(classed.free[i])] = static_cast<int>(i % static_cast<std::size_t>(bins));
  return out;
}

namespace {

// Classes of items that may change places: all of a class have the same cost and bytes.
struct SwapClasses {
  std::vector<std::int64_t> cost, bytes;  // by class
  std::vector<std::vector<int>> items;    // by class, in the order given
  std::vector<std::size_t> of;            // by item
  std::size_t classes() const { return items.size(); }
};

// Returns the classes, the largest first.
SwapClasses swap_classes(const std::vector<std::int64_t>& cost, const std::vector<std::int64_t>& bytes) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<int>, std::greater<>> found;
  for (std::size_t i = 0; i < cost.size(); ++i) found[{bytes[i], cost[i]}].push_back(static_cast<int>(i));
  SwapClasses out;
  out.of.resize(cost.size());
  for (auto& [key, items] : found) {
    for (const int item : items) out.of[static_cast<std::size_t>(item)] = out.classes();
    out.bytes.push_back(key.first);
    out.cost.push_back(key.second);
    out.items.push_back(std::move(items));
  }
  return out;
}

// The numbers of items by bin and class, with their cost and bytes.
struct Filling {
  Packing count;
  std::vector<std::int64_t> load, bytes;

  Filling(const SwapClasses& items, const std::vector<int>& bin, int bins)
      : count(static_cast<std::size_t>(bins), std::vector<int>(items.classes(), 0)),
        load(count.size(), 0),
        bytes(count.size(), 0) {
    for (std::size_t i = 0; i < bin.size(); ++i) move(items, items.of[i], static_cast<std::size_t>(bin[i]), 1);
  }
  void move(const SwapClasses& items, std::size_t kind, std::size_t bin, int by) {
    count[bin][kind] += by;
    load[bin] += by * items.cost[kind];
    bytes[bin] += by * items.bytes[kind];
  }
};

// An exchange of one item of the fullest bin against a smaller one of another bin, or against none.
struct Swap {
  std::size_t give = 0, take = 0, to = 0;  // take: a class, or the number of classes for none
  std::int64_t fuller = 0;                 // the larger of both bins, afterwards
};

// Returns the swap that leaves the least in the fuller of both bins, without a load above `largest`; where fuller =
// what `from` has, there is none.
Swap best_swap(const SwapClasses& items, const Filling& now, std::size_t from, std::int64_t largest) {
  const std::size_t none = items.classes();
  Swap best{.fuller = now.bytes[from]};
  for (std::size_t give = 0; give < none; ++give) {
    if (now.count[from][give] == 0) continue;
    for (std::size_t to = 0; to < now.count.size(); ++to)
      for (std::size_t take = 0; take <= none; ++take) {
        if (to == from || (take < none && now.count[to][take] == 0)) continue;
        const std::int64_t less = items.bytes[give] - (take < none ? items.bytes[take] : 0),
                           cheaper = items.cost[give] - (take < none ? items.cost[take] : 0);
        const std::int64_t fuller = std::max(now.bytes[from] - less, now.bytes[to] + less);
        if (fuller >= best.fuller || now.load[from] - cheaper > largest || now.load[to] + cheaper > largest) continue;
        best = {give, take, to, fuller};
      }
  }
  return best;
}

// The bytes that each bin receives of each bucket, and the most of each bucket.
class Shards {
 public:
  Shards(const SwapClasses& items, const std::vector<int>& bucket, int bins, int places)
      : items_(items), bucket_(bucket), places_(places) {
    const int buckets = bucket.empty() ? 0 : *std::max_element(bucket.begin(), bucket.end()) + 1;
    bytes_.assign(static_cast<std::size_t>(buckets), std::vector<std::int64_t>(static_cast<std::size_t>(bins), 0));
  }
  std::size_t buckets() const { return bytes_.size(); }
  std::size_t bin(int place) const { return static_cast<std::size_t>(place / places_); }
  std::size_t bucket(int item) const { return static_cast<std::size_t>(bucket_[static_cast<std::size_t>(item)]); }
  std::int64_t size(int item) const { return items_.bytes[items_.of[static_cast<std::size_t>(item)]]; }
  std::int64_t of(std::size_t bucket, std::size_t bin) const { return bytes_[bucket][bin]; }
  void add(int item, std::size_t bin, int sign) { bytes_[bucket(item)][bin] += sign * size(item); }
  std::size_t fullest(std::size_t bucket) const {
    const auto& row = bytes_[bucket];
    return static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin());
  }
  std::int64_t most(std::size_t bucket) const { return bytes_[bucket][fullest(bucket)]; }
  // Returns the most that a bin receives of a bucket, and the sum of that over all buckets.
  std::pair<std::int64_t, std::int64_t> measure() const {
    std::pair<std::int64_t, std::int64_t> sum(0, 0);
    for (std::size_t k = 0; k < buckets(); ++k) sum = {std::max(sum.first, most(k)), sum.second + most(k)};
    return sum;
  }

 private:
  const SwapClasses& items_;
  const std::vector<int>& bucket_;
  int places_;
  std::vector<std::vector<std::int64_t>> bytes_;  // by bucket and bin
};

// Deals the items of each class again, the largest class first: each goes to a place that is to have one of its class,
// where the bin has least of the bucket.
std::vector<int> deal_by_buckets(const SwapClasses& items, const std::vector<int>& place, Shards& shards) {
  std::vector<int> dealt(place.size());
  for (const std::vector<int>& equal : items.items) {
    std::vector<int> free;
    for (const int item : equal) free.push_back(place[static_cast<std::size_t>(item)]);
    for (const int item : equal) {
      const auto less = [&](int a, int b) {
        return shards.of(shards.bucket(item), shards.bin(a)) < shards.of(shards.bucket(item), shards.bin(b));
      };
      const auto best = std::min_element(free.begin(), free.end(), less);
      dealt[static_cast<std::size_t>(item)] = *best;
      shards.add(item, shards.bin(*best), 1);
      free.erase(best);
    }
  }
  return dealt;
}

// The loads and bytes of places and bins, and the most that any of them may have, which is what the earlier keys
// reached.
struct Room {
  const SwapClasses& items;
  int places;
  std::vector<std::int64_t> load, bytes, of_bin;  // by place, and by bin
  std::int64_t most_load = 0, most_bytes = 0, most_of_bin = 0;

  Room(const SwapClasses& classes, const std::vector<int>& place, int bins, int places_of_bin)
      : items(classes),
        places(places_of_bin),
        load(static_cast<std::size_t>(bins * places)),
        bytes(load.size()),
        of_bin(static_cast<std::size_t>(bins)) {
    for (std::size_t i = 0; i < place.size(); ++i) add(items.of[i], static_cast<std::size_t>(place[i]), 1);
    most_load = *std::max_element(load.begin(), load.end());
    most_bytes = *std::max_element(bytes.begin(), bytes.end());
    most_of_bin = *std::max_element(of_bin.begin(), of_bin.end());
  }
  std::size_t bin(std::size_t at) const { return at / static_cast<std::size_t>(places); }
  void add(std::size_t kind, std::size_t at, int sign) {
    load[at] += sign * items.cost[kind];
    bytes[at] += sign * items.bytes[kind];
    of_bin[bin(at)] += sign * items.bytes[kind];
  }
  bool takes(std::size_t kind, std::size_t at) const {
    return load[at] + items.cost[kind] <= most_load && bytes[at] + items.bytes[kind] <= most_bytes &&
           of_bin[bin(at)] + items.bytes[kind] <= most_of_bin;
  }
};

// Lets an item change places with one of its class from another bucket, such that no bin has as much of the two buckets
// as its bin has of its own.
bool exchange_item(const SwapClasses& items, int given, std::vector<int>& place, Shards& shards) {
  const auto place_of = [&](int item) -> int& { return place[static_cast<std::size_t>(item)]; };
  const std::size_t bucket = shards.bucket(given), bin = shards.bin(place_of(given));
  const std::int64_t most = shards.of(bucket, bin), size = shards.size(given);
  for (const int taken : items.items[items.of[static_cast<std::size_t>(given)]]) {
    const std::size_t other = shards.bucket(taken), from = shards.bin(place_of(taken));
    if (other == bucket || from == bin || shards.of(bucket, from) + size >= most ||
        shards.of(other, bin) + size >= most)
      continue;
    for (const auto& [item, out, in] : {std::tuple(given, bin, from), std::tuple(taken, from, bin)}) {
      shards.add(item, out, -1);
      shards.add(item, in, 1);
    }
    std::swap(place_of(given), place_of(taken));
    return true;
  }
  return false;
}

// Moves an item to a place that has room for it and less of its bucket.
bool move_item(const SwapClasses& items, int item, std::vector<int>& place, Shards& shards, Room& room) {
  int& from = place[static_cast<std::size_t>(item)];
  const std::size_t kind = items.of[static_cast<std::size_t>(item)], bucket = shards.bucket(item),
                    bin = shards.bin(from);
  const std::int64_t most = shards.of(bucket, bin), size = shards.size(item);
  for (std::size_t to = 0; to < room.load.size(); ++to) {
    if (room.bin(to) == bin || shards.of(bucket, room.bin(to)) + size >= most || !room.takes(kind, to)) continue;
    room.add(kind, static_cast<std::size_t>(from), -1);
    room.add(kind, to, 1);
    shards.add(item, bin, -1);
    shards.add(item, room.bin(to), 1);
    from = static_cast<int>(to);
    return true;
  }
  return false;
}

// Lowers what the fullest bin has of a bucket. Returns false where no item of it can go.
bool lower_bucket(const SwapClasses& items, std::size_t bucket, std::vector<int>& place, Shards& shards, Room& room) {
  const std::size_t bin = shards.fullest(bucket);
  const std::int64_t most = shards.of(bucket, bin);
  for (std::size_t kind = 0; kind < items.classes(); ++kind) {
    if (items.bytes[kind] == 0 || items.bytes[kind] == most) continue;  // this item alone is the least there can be
    const auto& equal = items.items[kind];
    const auto given = std::find_if(equal.begin(), equal.end(), [&](int item) {
      return shards.bucket(item) == bucket && shards.bin(place[static_cast<std::size_t>(item)]) == bin;
    });
    if (given == equal.end()) continue;
    if (exchange_item(items, *given, place, shards) || move_item(items, *given, place, shards, room)) return true;
  }
  return false;
}

}  // namespace

void even_bytes(const std::vector<std::int64_t>& cost, const std::vector<std::int64_t>& bytes, int bins,
                Assignment& assignment) {
  constexpr std::size_t most_work = 50'000'000;  // pairs looked at
  const SwapClasses items = swap_classes(cost, bytes);
  if (items.classes() == 0) return;
  Filling now(items, assignment.bin, bins);
  const std::size_t pairs = now.count.size() * items.classes() * items.classes();
  const std::size_t rounds = std::min(4 * now.count.size() + 64, most_work / pairs + 1);
  bool moved = false;
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto from =
        static_cast<std::size_t>(std::max_element(now.bytes.begin(), now.bytes.end()) - now.bytes.begin());
    if (now.bytes[from] <= items.bytes.front()) break;  // some bin has the largest item
    const Swap swap = best_swap(items, now, from, assignment.largest);
    if (swap.fuller == now.bytes[from]) break;
    now.move(items, swap.give, from, -1);
    now.move(items, swap.give, swap.to, 1);
    if (swap.take < items.classes()) {
      now.move(items, swap.take, swap.to, -1);
      now.move(items, swap.take, from, 1);
    }
    moved = true;
  }
  if (moved) deal(items.items, std::move(now.count), assignment.bin);
}

void even_buckets(const std::vector<std::int64_t>& cost, const std::vector<std::int64_t>& bytes,
                  const std::vector<int>& bucket, int bins, int places, std::vector<int>& place) {
  constexpr std::size_t most_work = 50'000'000;  // places and pairs looked at
  const SwapClasses items = swap_classes(cost, bytes);
  std::size_t dealing = 0, largest_class = 1;
  for (const std::vector<int>& equal : items.items) {
    dealing += equal.size() * equal.size();
    largest_class = std::max(largest_class, equal.size());
  }
  Shards before(items, bucket, bins, places), shards(items, bucket, bins, places);
  for (std::size_t i = 0; i < place.size(); ++i) before.add(static_cast<int>(i), before.bin(place[i]), 1);
  std::vector<int> dealt = place;
  if (dealing <= most_work)
    dealt = deal_by_buckets(items, place, shards);
  else
    for (std::size_t i = 0; i < place.size(); ++i) shards.add(static_cast<int>(i), shards.bin(place[i]), 1);
  Room room(items, place, bins, places);
  std::size_t tries = most_work / (largest_class * items.classes() + room.load.size());
  for (bool lowered = true; lowered;) {
    lowered = false;
    for (std::size_t k = 0; k < shards.buckets(); ++k)
      while (tries > 0 && lower_bucket(items, k, dealt, shards, room)) {
        lowered = true;
        --tries;
      }
  }
  if (shards.measure() < before.measure()) place = std::move(dealt);
}

}  // namespace sestina
