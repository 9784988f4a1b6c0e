#include "parallel/plan/expert_layout.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "parallel/plan/plan_assign.hpp"

namespace sestina {

int holding_rank(const TensorSpec& spec, const ModelConfig& model, const ParallelOptions& parallel) {
  if (parallel.ep == 1 || spec.expert < 0) return -1;
  return static_cast<int>(spec.expert / (model.num_experts / parallel.ep));
}

void drop_other_experts(std::vector<TensorSpec>& local, const PlanInput& input, int dp_rank) {
  for (TensorSpec& spec : local) {
    const int place = holding_rank(spec, input.model, input.parallel);
    if (place >= 0 && place != expert_rank(input.parallel, dp_rank)) spec.rows = 0;
  }
}

void set_experts(ModelPart& part, const ParallelOptions& parallel, int dp_rank) {
  part.ep = parallel.ep;
  part.ep_rank = expert_rank(parallel, dp_rank);
  part.expert_room = parallel.expert_room;
}

bool is_of_experts(const StagePlan& stage, const BucketLayout& bucket, int ep) {
  return ep > 1 && stage.specs[at(bucket.specs.front())].expert >= 0;
}

GradientBuckets buckets_of(const GradientBuckets& all, const StagePlan& stage, bool experts) {
  GradientBuckets some;
  for (std::size_t b = 0; b < all.buckets.size(); ++b) {
    if (is_of_experts(stage, all.buckets[b], all.ep) != experts) continue;
    some.buckets.push_back(all.buckets[b]);
    some.begin.push_back(all.begin[b]);
  }
  some.begin.push_back(all.begin.back());
  some.place = all.place;
  some.ep = all.ep;
  return some;
}

namespace {

std::int64_t largest_with(const std::vector<std::int64_t>& cost, const std::vector<int>& owner,
                          std::vector<std::int64_t> load) {
  for (std::size_t i = 0; i < cost.size(); ++i) load[at(owner[i])] += cost[i];
  return *std::max_element(load.begin(), load.end());
}

// Returns ranks in the order of their values, the least first; equal ones in their own order.
std::vector<int> ranks_by(const std::vector<std::int64_t>& value) {
  std::vector<int> ranks(value.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return value[at(a)] < value[at(b)]; });
  return ranks;
}

std::vector<int> longest_on_top(const std::vector<std::int64_t>& cost, const std::vector<std::int64_t>& load) {
  std::vector<int> order(cost.size()), owner(cost.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return cost[at(a)] > cost[at(b)]; });
  using Slot = std::pair<std::int64_t, int>;
  std::priority_queue<Slot, std::vector<Slot>, std::greater<>> least;
  for (int rank = 0; rank < static_cast<int>(load.size()); ++rank) least.emplace(load[at(rank)], rank);
  for (const int item : order) {
    const auto [before, rank] = least.top();
    least.pop();
    owner[at(item)] = rank;
    least.emplace(before + cost[at(item)], rank);
  }
  return owner;
}

}  // namespace

std::vector<int> owners_on_top(const std::vector<std::int64_t>& cost, std::vector<int> owner,
                               const std::vector<std::int64_t>& load) {
  const auto [least, most] = std::minmax_element(load.begin(), load.end());
  if (*least == *most) return owner;
  std::vector<std::int64_t> share(load.size(), 0);
  for (std::size_t i = 0; i < cost.size(); ++i) share[at(owner[i])] -= cost[i];  // the largest first
  const std::vector<int> from = ranks_by(share), to = ranks_by(load);
  std::vector<int> moved(load.size());
  for (std::size_t i = 0; i < from.size(); ++i) moved[at(from[i])] = to[i];
  for (int& rank : owner) rank = moved[at(rank)];
  std::vector<int> longest = longest_on_top(cost, load);
  return largest_with(cost, longest, load) < largest_with(cost, owner, load) ? longest : owner;
}

// All places have equal experts: with one holder each, every rank has the same load before the other matrices come.
std::int64_t expert_load_bound(const std::vector<std::int64_t>& rest, const std::vector<std::int64_t>& experts,
                               const ParallelOptions& parallel) {
  const int holders = expert_holders(parallel);
  if (holders == 1)
    return std::accumulate(experts.begin(), experts.end(), std::int64_t{0}) + assign_optimal(rest, parallel.dp).bound;
  std::vector<std::int64_t> all = rest;
  for (int place = 0; place < parallel.ep; ++place) all.insert(all.end(), experts.begin(), experts.end());
  return std::max(load_bound(all, parallel.dp), assign_optimal(experts, holders).bound);
}

}  // namespace sestina
