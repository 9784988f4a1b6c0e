#include "parallel/plan/matrix_groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "core/layout/rank_layout.hpp"
#include "core/optimizer/base/own_blocks.hpp"
#include "core/optimizer/base/routing.hpp"
#include "kernels/base/error.hpp"
#include "parallel/plan/expert_layout.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/plan/plan_assign.hpp"
#include "parallel/plan/plan_cost.hpp"

namespace sestina {
namespace {

constexpr double near_enough = 1.05;  // times the mean load

// What is dealt out: a matrix that ranks may divide, or a part that one rank updates.
struct DealtItem {
  int spec = 0;
  MatrixPart part;
  bool divides = false;
  std::int64_t cost = 0;  // of the whole of it, on one rank
  int ranks = 1, first = 0;
};

bool divides_here(const TensorSpec& spec, const MatrixPart& part, const PlanInput& input) {
  return divides(spec, input.optimizer) && part.rows == spec.rows && part.cols == spec.cols;
}

// Returns share number `place` of an item: its slab of the longer side.
MatrixShare share_of(const DealtItem& item, int place) {
  const MatrixPart& part = item.part;
  MatrixShare share{item.spec,
                    item.first + place,
                    part.row_begin,
                    part.row_begin + part.rows,
                    part.col_begin,
                    part.col_begin + part.cols,
                    0,
                    item.ranks};
  const bool tall = part.rows >= part.cols;
  const std::int64_t length = std::max(part.rows, part.cols);
  std::int64_t& begin = tall ? share.row_begin : share.col_begin;
  (tall ? share.row_end : share.col_end) = begin + first_row_of(length, item.ranks, place + 1);
  begin += first_row_of(length, item.ranks, place);
  return share;
}

// The cost of each share of an item, found once for each shape and number of ranks.
class ShareCosts {
 public:
  ShareCosts(const StagePlan& stage, const PlanInput& input) : stage_(stage), input_(input) {}
  const std::vector<std::int64_t>& of(const DealtItem& item) {
    const int heads = stage_.specs[at(item.spec)].heads;  // of a whole matrix, which may be updated by heads
    const auto [place, is_new] = known_.try_emplace({item.part.rows, item.part.cols, heads, item.divides, item.ranks});
    DealtItem one = item;
    one.first = 0;
    if (is_new)
      for (int p = 0; p < item.ranks; ++p)
        place->second.push_back(share_cost(share_of(one, p), stage_.specs[at(item.spec)], input_.optimizer,
                                           input_.parallel.cost, input_.machine));
    return place->second;
  }

 private:
  const StagePlan& stage_;
  const PlanInput& input_;
  std::map<std::tuple<std::int64_t, std::int64_t, int, bool, int>, std::vector<std::int64_t>> known_;
};

// together: matrices that no parts are made of.
std::vector<DealtItem> items_of(const StagePlan& stage, const PlanInput& input, const std::vector<int>& specs,
                                const std::set<int>& together, ShareCosts& costs) {
  const auto ranks = at(input.parallel.dp * input.parallel.tp);
  std::vector<DealtItem> items;
  for (const int spec : specs) {
    const TensorSpec& tensor = stage.specs[at(spec)];
    std::vector<SeparatePart> parts = separate_parts(tensor, input.optimizer);
    if (parts.size() > ranks || together.count(spec) > 0) parts = {{{"", 0, tensor.rows, tensor.cols}}};
    for (SeparatePart& separate : parts) {
      DealtItem item{spec, std::move(separate.part)};
      item.part.name.clear();
      item.divides = divides_here(tensor, item.part, input);
      item.cost = costs.of(item).front();
      items.push_back(std::move(item));
    }
  }
  return items;
}

// Gives an item to the run of ranks whose fullest rank is the least full with it.
void place_group(DealtItem& item, const std::vector<std::int64_t>& cost, std::vector<std::int64_t>& load) {
  std::int64_t least = 0;
  for (int first = 0; first < static_cast<int>(load.size()); first += item.ranks) {
    std::int64_t most = 0;
    for (int place = 0; place < item.ranks; ++place) most = std::max(most, load[at(first + place)] + cost[at(place)]);
    if (first > 0 && most >= least) continue;
    least = most;
    item.first = first;
  }
  for (int place = 0; place < item.ranks; ++place) load[at(item.first + place)] += cost[at(place)];
}

// Gives what one rank updates, longest first, to the rank with the least that has no other part of the matrix.
void place_singles(const std::vector<DealtItem*>& longest_first, std::vector<std::int64_t>& load) {
  std::set<std::pair<std::int64_t, int>> by_load;
  for (std::size_t rank = 0; rank < load.size(); ++rank) by_load.emplace(load[rank], static_cast<int>(rank));
  std::set<std::pair<int, int>> held;  // rank and spec
  for (DealtItem* item : longest_first) {
    const auto least = std::find_if(by_load.begin(), by_load.end(), [&](const std::pair<std::int64_t, int>& slot) {
      return held.emplace(slot.second, item->spec).second;
    });
    SESTINA_REQUIRE(least != by_load.end(), "a matrix has more parts than there are ranks");
    item->first = least->second;
    by_load.erase(least);
    load[at(item->first)] += item->cost;
    by_load.emplace(load[at(item->first)], item->first);
  }
}

// Gives each item its first rank, large groups first. Returns the largest load.
std::int64_t pack(std::vector<DealtItem>& items, ShareCosts& costs, int ranks) {
  std::vector<std::int64_t> load(at(ranks), 0), cost, elements;
  std::vector<DealtItem*> order;
  for (DealtItem& item : items) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const DealtItem* a, const DealtItem* b) {
    return std::tie(a->ranks, a->cost) > std::tie(b->ranks, b->cost);
  });
  const auto singles = std::find_if(order.begin(), order.end(), [](const DealtItem* item) { return item->ranks == 1; });
  if (singles != order.begin()) {
    for (auto item = order.begin(); item != singles; ++item) place_group(**item, costs.of(**item), load);
    place_singles({singles, order.end()}, load);
    return *std::max_element(load.begin(), load.end());
  }
  for (const DealtItem& item : items) {
    cost.push_back(item.cost);
    elements.push_back(item.part.elements());
  }
  Assignment best = assign_optimal(cost, ranks);
  even_bytes(cost, elements, ranks, best);
  for (std::size_t i = 0; i < items.size(); ++i) items[i].first = best.bin[i];
  return best.largest;
}

// Makes the groups of the matrices of one shape larger, of which a rank has most. Returns false where none can be.
bool enlarge_groups(std::vector<DealtItem>& items, const std::vector<int>& sizes) {
  const auto next = [&](const DealtItem& item) {
    const auto larger = std::upper_bound(sizes.begin(), sizes.end(), item.ranks);
    const bool fits = larger != sizes.end() && *larger <= std::max(item.part.rows, item.part.cols);
    return item.divides && fits ? *larger : item.ranks;
  };
  const DealtItem* most = nullptr;
  for (const DealtItem& item : items)
    if (next(item) > item.ranks && (most == nullptr || item.cost / item.ranks > most->cost / most->ranks)) most = &item;
  if (most == nullptr) return false;
  const std::int64_t rows = most->part.rows, cols = most->part.cols;
  const int larger = next(*most);
  for (DealtItem& item : items)
    if (item.divides && item.part.rows == rows && item.part.cols == cols) item.ranks = larger;
  return true;
}

// Chooses groups and places: groups begin with the size at which no rank has more than enough of one matrix, and grow
// until the packing is near the mean; the best packing that was seen counts.
std::vector<DealtItem> deal(std::vector<DealtItem> items, ShareCosts& costs, int ranks) {
  double mean = 0;
  for (const DealtItem& item : items) mean += static_cast<double>(item.cost) / ranks;
  const std::vector<int> sizes = group_sizes(ranks);
  for (DealtItem& item : items)
    for (const int size : sizes)
      if (item.divides && static_cast<double>(item.cost) > near_enough * mean * item.ranks &&
          size <= std::max(item.part.rows, item.part.cols))
        item.ranks = size;
  std::int64_t least = pack(items, costs, ranks);
  std::vector<DealtItem> best = items;
  while (static_cast<double>(least) > near_enough * mean && enlarge_groups(items, sizes)) {
    const std::int64_t largest = pack(items, costs, ranks);
    if (largest >= least) continue;
    least = largest;
    best = items;
  }
  return best;
}

// Lets parts of a matrix that came to one rank change places with parts of the same cost and size of others, so that no
// rank has two of a matrix: a rank's state of a tensor is one slab of it. Returns the matrices with which it cannot be.
std::set<int> part_apart(std::vector<DealtItem>& items) {
  std::map<std::pair<int, int>, int> held;  // parts of a matrix on a rank, by (rank, spec)
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<DealtItem*>> equal;
  for (DealtItem& item : items) {
    if (item.ranks > 1) continue;
    ++held[{item.first, item.spec}];
    equal[{item.cost, item.part.elements()}].push_back(&item);
  }
  std::set<int> failed;
  for (DealtItem& item : items) {
    if (item.ranks > 1 || held[{item.first, item.spec}] == 1) continue;
    const std::vector<DealtItem*>& others = equal[{item.cost, item.part.elements()}];
    const auto other = std::find_if(others.begin(), others.end(), [&](const DealtItem* one) {
      return held.count({one->first, item.spec}) == 0 && held.count({item.first, one->spec}) == 0;
    });
    if (other == others.end()) {
      failed.insert(item.spec);
      continue;
    }
    --held[{item.first, item.spec}];
    if (--held[{(*other)->first, (*other)->spec}] == 0) held.erase({(*other)->first, (*other)->spec});
    std::swap(item.first, (*other)->first);
    held[{item.first, item.spec}] = 1;
    held[{(*other)->first, (*other)->spec}] = 1;
  }
  return failed;
}

bool is_whole(const DealtItem& item, const StagePlan& stage) {
  const TensorSpec& spec = stage.specs[at(item.spec)];
  return item.ranks == 1 && item.part.rows == spec.rows && item.part.cols == spec.cols;
}

// Lets whole matrices of the same cost and size change ranks, so that as many as can be are on ranks that hold them.
void prefer_holders(std::vector<DealtItem>& items, const StagePlan& stage, const PlanInput& input) {
  const ParallelOptions& parallel = input.parallel;
  if (parallel.ep == 1) return;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<DealtItem*>> equal;
  for (DealtItem& item : items)
    if (is_whole(item, stage)) equal[{item.cost, item.part.elements()}].push_back(&item);
  for (const auto& [size, whole] : equal) {
    std::vector<std::vector<int>> ranks(at(parallel.ep));  // of these matrices, by place
    for (const DealtItem* item : whole)
      ranks[at(expert_rank(parallel, item->first / parallel.tp))].push_back(item->first);
    const auto take = [](DealtItem& item, std::vector<int>& from) {
      if (from.empty()) return false;
      item.first = from.back();
      from.pop_back();
      return true;
    };
    std::vector<DealtItem*> rest;
    for (DealtItem* item : whole) {
      const int place = holding_rank(stage.specs[at(item->spec)], input.model, parallel);
      if (place < 0 || !take(*item, ranks[at(place)])) rest.push_back(item);
    }
    for (DealtItem* item : rest)
      std::any_of(ranks.begin(), ranks.end(), [&](std::vector<int>& from) { return take(*item, from); });
  }
}

// Returns a bound on the largest load: the mean; what nobody can divide; and of these alone that of their packing.
std::int64_t bound_of(const std::vector<DealtItem>& items, int ranks) {
  std::int64_t all = 0;
  std::vector<std::int64_t> whole;
  for (const DealtItem& item : items) {
    all += item.cost;
    if (!item.divides) whole.push_back(item.cost);
  }
  const std::int64_t mean = (all + ranks - 1) / ranks;
  return whole.empty() ? mean : std::max(mean, assign_optimal(whole, ranks).bound);
}

// Chooses the data-parallel ranks that gradients of shares are summed to: each time the one that receives least so far
// of those that hold the matrix, whole matrices included, the largest matrices first.
void choose_receivers(StagePlan& stage, const PlanInput& input, std::vector<int> specs) {
  std::vector<std::int64_t> received(at(input.parallel.dp), 0);
  std::erase_if(specs, [&](int spec) {
    const bool whole = stage.home[at(spec)] != in_shares;
    if (whole) received[at(stage.owner[at(spec)])] += stage.specs[at(spec)].elements();
    return whole;
  });
  std::stable_sort(specs.begin(), specs.end(),
                   [&](int a, int b) { return stage.specs[at(a)].elements() > stage.specs[at(b)].elements(); });
  for (const int spec : specs) {
    const int place = holding_rank(stage.specs[at(spec)], input.model, input.parallel), first = std::max(place, 0);
    int least = first;
    for (int rank = first; rank < input.parallel.dp; rank += place < 0 ? 1 : input.parallel.ep)
      if (received[at(rank)] < received[at(least)]) least = rank;
    stage.owner[at(spec)] = least;
    received[at(least)] += stage.specs[at(spec)].elements();
  }
}

}  // namespace

std::vector<int> group_sizes(int ranks) {
  std::vector<int> sizes = {1};
  for (int factor = 2; sizes.back() < ranks; ++factor)
    while (ranks / sizes.back() % factor == 0 && sizes.back() < ranks) sizes.push_back(sizes.back() * factor);
  return sizes;
}

bool divides(const TensorSpec& spec, const OptimizerOptions& optimizer) {
  return is_matrix_optimized(spec, optimizer) && find_matrix_kind(optimizer.matrix->kind)->shard_work &&
         !is_by_head(spec, optimizer) && !spec.is_packed() && !optimizer.matrix->rules.any();
}

std::vector<SeparatePart> separate_parts(const TensorSpec& spec, const OptimizerOptions& optimizer) {
  std::vector<SeparatePart> parts;
  for (MatrixPart& block : own_blocks(spec, optimizer)) parts.push_back({std::move(block), 0, parts.size(), true});
  if (!parts.empty()) return parts;
  for (MatrixPart& part : matrix_parts(spec, optimizer)) parts.push_back({std::move(part), parts.size()});
  return parts;
}

void deal_shares(StagePlan& stage, const PlanInput& input, const std::vector<int>& specs) {
  const int ranks = input.parallel.dp * input.parallel.tp;
  ShareCosts costs(stage, input);
  std::vector<DealtItem> items;
  std::set<int> together;
  for (bool parted = false; !parted;) {
    items = items_of(stage, input, specs, together, costs);
    if (items.empty()) return;
    stage.home_bound = bound_of(items, ranks);
    items = deal(std::move(items), costs, ranks);
    const std::set<int> failed = part_apart(items);
    together.insert(failed.begin(), failed.end());
    parted = failed.empty();
  }
  prefer_holders(items, stage, input);
  // With one tensor-parallel rank the owner of a whole matrix updates it where it lies.
  const auto whole = [&](const DealtItem& item) {
    return input.parallel.tp == 1 && is_whole(item, stage) && holds(stage.specs[at(item.spec)], input, item.first);
  };
  std::stable_sort(items.begin(), items.end(),
                   [](const DealtItem& a, const DealtItem& b) { return a.ranks > b.ranks; });
  for (const int spec : specs) stage.cost[at(spec)] = 0;
  for (const DealtItem& item : items) {
    stage.cost[at(item.spec)] += item.cost;
    stage.home[at(item.spec)] = whole(item) ? 0 : in_shares;
    if (whole(item)) {
      stage.owner[at(item.spec)] = item.first;
      continue;
    }
    for (int place = 0; place < item.ranks; ++place) {
      stage.shares.push_back(share_of(item, place));
      stage.shares.back().cost = costs.of(item)[at(place)];
    }
  }
  choose_receivers(stage, input, specs);
}

std::vector<std::string> group_lines(const Plan& plan) {
  struct Shape {
    std::int64_t rows, cols;
    int ranks;           // that update it together
    std::size_t shares;  // of each matrix
    auto operator<=>(const Shape&) const = default;
  };
  std::map<Shape, int> matrices;
  for (const StagePlan& stage : plan.stages) {
    std::vector<std::size_t> shares(stage.specs.size(), 0);
    std::vector<int> ranks(stage.specs.size(), 1);
    for (const MatrixShare& share : stage.shares) {
      ++shares[at(share.spec)];
      ranks[at(share.spec)] = share.ranks;
    }
    for (std::size_t i = 0; i < stage.specs.size(); ++i)
      if (stage.owner[i] != scalar_tensor)
        ++matrices[{stage.specs[i].rows, stage.specs[i].cols, ranks[i], std::max<std::size_t>(shares[i], 1)}];
  }
  std::vector<std::string> lines;
  for (const auto& [shape, count] : matrices)
    lines.push_back(fmt::format("{} of {} x {}: {}", count, shape.rows, shape.cols,
                                shape.ranks > 1    ? fmt::format("{} ranks each, together", shape.ranks)
                                : shape.shares > 1 ? fmt::format("{} parts each, by themselves", shape.shares)
                                                   : "whole"));
  return lines;
}

}  // namespace sestina
