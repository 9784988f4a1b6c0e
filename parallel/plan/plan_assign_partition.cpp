#include "parallel/plan/plan_assign.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/layout/plan.hpp"

namespace sestina {

namespace {

using Items = std::vector<PartitionItem>;

template <class Of>
std::int64_t sum_of(const std::vector<int>& bucket, Of of) {
  std::int64_t sum = 0;
  for (const int item : bucket) sum += of(item);
  return sum;
}

// Returns bucket numbers, the heaviest first.
std::vector<std::size_t> by_cost(const Items& items, const Buckets& buckets) {
  std::vector<std::int64_t> weight;
  for (const auto& bucket : buckets) weight.push_back(sum_of(bucket, [&](int i) { return items[at(i)].cost; }));
  std::vector<std::size_t> order(buckets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return weight[a] > weight[b]; });
  return order;
}

// Returns the share of a bucket that each rank should take.
std::vector<double> shares(const std::vector<double>& load, double mean, double alpha) {
  const double even = 1.0 / static_cast<double>(load.size());
  std::vector<double> missing;
  for (const double x : load) missing.push_back(std::max(0.0, mean - x));
  const double sum = std::accumulate(missing.begin(), missing.end(), 0.0);
  for (double& x : missing) x = (1 - alpha) * even + alpha * (sum > 0 ? x / sum : even);
  return missing;
}

// Cuts one bucket at the item ends nearest to the shares.
void cut_bucket(const Items& items, const std::vector<int>& bucket, const std::vector<double>& share,
                std::vector<double>& load, std::vector<int>& owner) {
  std::vector<double> end = {0};  // end[n]: the cost of the first n items
  for (const int item : bucket) end.push_back(end.back() + static_cast<double>(items[at(item)].cost));
  const std::size_t last = share.size() - 1;
  double wanted = 0;
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank <= last; ++rank) {
    wanted += end.back() * share[rank];
    std::size_t cut = rank == last ? bucket.size() : begin;
    for (std::size_t u = begin + 1; rank != last && u < end.size(); ++u)
      if (std::abs(end[u] - wanted) < std::abs(end[cut] - wanted)) cut = u;
    for (std::size_t i = begin; i < cut; ++i) owner[at(bucket[i])] = static_cast<int>(rank);
    load[rank] += end[cut] - end[begin];
    begin = cut;
  }
}

std::int64_t largest(const Items& items, const std::vector<int>& owner, int ranks) {
  const auto load = loads(items, owner, ranks);
  return *std::max_element(load.begin(), load.end());
}

}  // namespace

Buckets fill_buckets(const Items& items, std::int64_t bucket_elements, bool at_blocks) {
  Buckets buckets;
  std::int64_t filled = 0;
  bool open = false;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!open) buckets.emplace_back();
    buckets.back().push_back(static_cast<int>(i));
    filled = (open ? filled : 0) + items[i].elements;
    const bool may_close = !at_blocks || i + 1 == items.size() || items[i + 1].block != items[i].block;
    open = filled < bucket_elements || !may_close;
  }
  return buckets;
}

std::int64_t usual_bucket(const Items& items, int ranks) {
  constexpr std::int64_t most = 16, least = 4;  // buckets
  std::int64_t total = 0, longest = 0;
  for (const PartitionItem& item : items) {
    total += item.elements;
    longest = std::max(longest, item.elements);
  }
  return std::max({total / most, std::min(longest * ranks, total / least), std::int64_t{1}});
}

std::vector<int> start_index_owners(const Items& items, const Buckets& buckets, int ranks) {
  std::vector<int> owner(items.size(), 0);
  for (const auto& bucket : buckets) {
    const std::int64_t size = sum_of(bucket, [&](int i) { return items[at(i)].elements; });
    std::int64_t start = 0;
    for (const int item : bucket) {
      owner[at(item)] = static_cast<int>(start * ranks / size);
      start += items[at(item)].elements;
    }
  }
  return owner;
}

std::vector<int> balanced_owners(const Items& items, const Buckets& buckets, int ranks, double alpha) {
  std::vector<int> owner(items.size(), 0);
  std::vector<double> load(at(ranks), 0.0);
  double total = 0;
  for (const PartitionItem& item : items) total += static_cast<double>(item.cost);
  for (const std::size_t k : by_cost(items, buckets))
    cut_bucket(items, buckets[k], shares(load, total / ranks, alpha), load, owner);
  std::vector<int> plain = start_index_owners(items, buckets, ranks);
  return largest(items, owner, ranks) < largest(items, plain, ranks) ? owner : plain;
}

std::vector<int> layerwise_owners(const Items& items, const Buckets& buckets, int ranks) {
  constexpr double most_share = 1.3;
  std::vector<int> owner(items.size(), 0);
  std::vector<std::int64_t> load(at(ranks), 0);
  for (std::vector<int> bucket : buckets) {
    const double size = static_cast<double>(sum_of(bucket, [&](int i) { return items[at(i)].elements; }));
    const double cap = most_share * size / ranks;
    std::vector<std::int64_t> share(at(ranks), 0);
    std::stable_sort(bucket.begin(), bucket.end(), [&](int a, int b) { return items[at(a)].cost > items[at(b)].cost; });
    for (const int item : bucket) {
      const std::int64_t n = items[at(item)].elements;
      std::size_t best = at(ranks), emptiest = 0;
      for (std::size_t r = 0; r < at(ranks); ++r) {
        if (share[r] < share[emptiest] || (share[r] == share[emptiest] && load[r] < load[emptiest])) emptiest = r;
        if (static_cast<double>(share[r] + n) > cap) continue;
        if (best == at(ranks) || load[r] < load[best]) best = r;
      }
      if (best == at(ranks)) best = emptiest;  // larger than any cap allows
      owner[at(item)] = static_cast<int>(best);
      share[best] += n;
      load[best] += items[at(item)].cost;
    }
  }
  return owner;
}

std::vector<std::int64_t> loads(const Items& items, const std::vector<int>& owner, int ranks) {
  std::vector<std::int64_t> load(at(ranks), 0);
  for (std::size_t i = 0; i < items.size(); ++i) load[at(owner[i])] += items[i].cost;
  return load;
}

}  // namespace sestina
