#include "parallel/plan/expert_layout.hpp"

#include <algorithm>
#include <numeric>

#include "parallel/plan/plan_assign.hpp"

namespace sestina {

int holding_rank(const TensorSpec& spec, const ModelConfig& model, const ParallelOptions& parallel) {
  if (!is_shared_out(spec, parallel.ep)) return -1;
  return static_cast<int>(spec.expert / (model.num_experts / parallel.ep));
}

bool holds(const TensorSpec& spec, const PlanInput& input, int dp_rank) {
  const int place = holding_rank(spec, input.model, input.parallel);
  return place < 0 || place == expert_rank(input.parallel, dp_rank);
}

void drop_other_experts(std::vector<TensorSpec>& local, const PlanInput& input, int dp_rank) {
  for (TensorSpec& spec : local)
    if (!holds(spec, input, dp_rank)) spec.rows = 0;
}

void set_experts(ModelPart& part, const ParallelOptions& parallel, int dp_rank) {
  part.ep = parallel.ep;
  part.ep_rank = expert_rank(parallel, dp_rank);
  part.expert_room = parallel.expert_room;
}

bool is_shared_out(const TensorSpec& spec, int ep) { return ep > 1 && spec.expert >= 0; }

bool is_of_experts(const StagePlan& stage, const BucketLayout& bucket, int ep) {
  return is_shared_out(stage.specs[at(bucket.specs.front())], ep);
}

GradientBuckets buckets_of(const GradientBuckets& all, bool experts) {
  GradientBuckets some;
  for (std::size_t b = 0; b < all.buckets.size(); ++b) {
    if (all.of_experts[b] != experts) continue;
    some.buckets.push_back(all.buckets[b]);
    some.of_experts.push_back(false);
    some.begin.push_back(all.begin[b]);
    if (all.in_turn()) some.turn.push_back(all.turn[b]);
  }
  some.begin.push_back(all.begin.back());
  some.place = all.place;
  some.to_all = all.to_all;
  return some;
}

namespace {

// Returns ranks in the order of their values, the least first; equal ones in their own order.
std::vector<int> ranks_by(const std::vector<std::int64_t>& value) {
  std::vector<int> ranks(value.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return value[at(a)] < value[at(b)]; });
  return ranks;
}

bool may_own(const PlacedItems& items, std::size_t item, int rank, const ParallelOptions& parallel) {
  return items.place[item] < 0 || items.place[item] == expert_rank(parallel, rank);
}

std::vector<int> longest_first(const PlacedItems& items, const ParallelOptions& parallel) {
  std::vector<int> order(items.cost.size()), owner(items.cost.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return items.cost[at(a)] > items.cost[at(b)]; });
  std::vector<std::int64_t> load(at(parallel.dp), 0);
  for (const int item : order) {
    const int place = items.place[at(item)], first = std::max(place, 0), step = place < 0 ? 1 : parallel.ep;
    int best = first;
    for (int rank = first; rank < parallel.dp; rank += step)
      if (load[at(rank)] < load[at(best)]) best = rank;
    owner[at(item)] = best;
    load[at(best)] += items.cost[at(item)];
  }
  return owner;
}

// Lightens the most loaded rank by one item, against a smaller one of the rank that takes it or against none, such that
// the more loaded of both has least. Returns false where nothing helps.
bool lighten(const PlacedItems& items, const ParallelOptions& parallel, std::vector<int>& owner,
             std::vector<std::int64_t>& load) {
  const auto from = static_cast<int>(std::max_element(load.begin(), load.end()) - load.begin());
  constexpr std::size_t none = static_cast<std::size_t>(-1);
  std::int64_t best = load[at(from)];
  std::size_t given = none, taken = none;
  int to = from;
  const auto weigh = [&](std::size_t give, std::size_t take, int rank) {
    const std::int64_t less = items.cost[give] - (take == none ? 0 : items.cost[take]);
    const std::int64_t more_loaded = std::max(load[at(from)] - less, load[at(rank)] + less);
    if (less <= 0 || more_loaded >= best) return;
    best = more_loaded;
    given = give;
    taken = take;
    to = rank;
  };
  for (std::size_t give = 0; give < owner.size(); ++give) {
    if (owner[give] != from) continue;
    for (int rank = 0; rank < parallel.dp; ++rank)
      if (rank != from && may_own(items, give, rank, parallel)) weigh(give, none, rank);
    for (std::size_t take = 0; take < owner.size(); ++take)
      if (owner[take] != from && may_own(items, give, owner[take], parallel) && may_own(items, take, from, parallel))
        weigh(give, take, owner[take]);
  }
  if (given == none) return false;
  const std::int64_t less = items.cost[given] - (taken == none ? 0 : items.cost[taken]);
  load[at(from)] -= less;
  load[at(to)] += less;
  owner[given] = to;
  if (taken != none) owner[taken] = from;
  return true;
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
  return owner;
}

std::vector<int> balance_places(const PlacedItems& items, std::vector<int> owner, const ParallelOptions& parallel) {
  constexpr int most_moves = 1000;
  constexpr double little = 1e-3;  // a smaller gain is not worth what evens bytes and buckets in `owner`
  const auto loads = [&](const std::vector<int>& of) {
    std::vector<std::int64_t> load(at(parallel.dp), 0);
    for (std::size_t i = 0; i < of.size(); ++i) load[at(of[i])] += items.cost[i];
    return load;
  };
  const auto largest = [](const std::vector<std::int64_t>& load) {
    return static_cast<double>(*std::max_element(load.begin(), load.end()));
  };
  std::vector<int> found = longest_first(items, parallel);
  const double before = largest(loads(owner));
  if (before <= largest(loads(found))) found = owner;
  std::vector<std::int64_t> load = loads(found);
  for (int move = 0; move < most_moves && lighten(items, parallel, found, load); ++move) {
  }
  return largest(load) < (1 - little) * before ? found : owner;
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
