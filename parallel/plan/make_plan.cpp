#include "parallel/plan/make_plan.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/optimizer/base/routing.hpp"
#include "parallel/plan/block_turns.hpp"
#include "parallel/plan/expert_layout.hpp"
#include "parallel/plan/expert_owners.hpp"
#include "parallel/plan/matrix_groups.hpp"
#include "parallel/plan/plan_assign.hpp"
#include "parallel/plan/plan_cost.hpp"
#include "parallel/plan/refresh_budget.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

using Partition = ParallelOptions::Partition;
using TpUpdate = ParallelOptions::TpUpdate;

// The numbers of a stage that planning needs in addition to the plan itself. Items are its matrices in backward order.
struct Draft {
  std::vector<int> specs;  // by item
  std::vector<PartitionItem> items;
  std::vector<std::int64_t> cost;
  Buckets buckets;  // of items
  std::vector<std::int64_t> elements() const {
    std::vector<std::int64_t> all;
    for (const PartitionItem& item : items) all.push_back(item.elements);
    return all;
  }
  std::vector<int> bucket_of() const {
    std::vector<int> bucket(items.size(), 0);
    for (std::size_t b = 0; b < buckets.size(); ++b)
      for (const int item : buckets[b]) bucket[at(item)] = static_cast<int>(b);
    return bucket;
  }
};

// Tensors of a stage by the ranks that hold them: those of one place (holding_rank), or of all ranks.
constexpr int on_all_ranks = -1, wherever = -2;

Draft draft(const StagePlan& stage, const std::vector<TensorSpec>& local, const PlanInput& input, bool matrices,
            int where = wherever) {
  const ParallelOptions& parallel = input.parallel;
  Draft out;
  out.specs = backward_order(stage.specs, [&](std::size_t i) {
    const bool here = where == wherever || where == holding_rank(stage.specs[i], input.model, parallel);
    return stage.specs[i].trainable && (stage.owner[i] != scalar_tensor) == matrices && here;
  });
  for (const int spec : out.specs) {
    out.items.push_back({local[at(spec)].elements(), stage.cost[at(spec)], local[at(spec)].block});
    out.cost.push_back(stage.cost[at(spec)]);
  }
  const int ranks = !matrices ? 1 : where < 0 ? parallel.dp : expert_holders(parallel);
  const std::int64_t size = gradients_in_turn(parallel)    ? 1  // a bucket for each block
                            : parallel.bucket_elements > 0 ? parallel.bucket_elements
                                                           : usual_bucket(out.items, ranks);
  out.buckets = fill_buckets(out.items, size, true);
  return out;
}

Buckets numbers_of_specs(const Draft& draft) {
  Buckets buckets = draft.buckets;
  for (auto& bucket : buckets)
    for (int& item : bucket) item = draft.specs[at(item)];
  return buckets;
}

// Fills the homes of all data-parallel ranks together; then tp of them make a rank.
void assign_jointly(StagePlan& stage, const Draft& draft, const PlanInput& input) {
  const int dp = input.parallel.dp, tp = input.parallel.tp;
  Assignment best = assign_optimal(draft.cost, dp * tp);
  std::vector<std::int64_t> whole;
  for (const int spec : draft.specs) whole.push_back(stage.specs[at(spec)].elements());
  even_bytes(draft.cost, whole, dp * tp, best);
  std::vector<std::int64_t> received(at(dp * tp), 0);  // bytes received for an item by all ranks of its group
  for (std::size_t i = 0; i < whole.size(); ++i) received[at(best.bin[i])] += draft.items[i].elements;
  const std::vector<int> rank = group_homes(received, dp, tp);
  std::vector<int> place;
  for (const int bin : best.bin) place.push_back(rank[at(bin)]);
  even_buckets(draft.cost, draft.elements(), draft.bucket_of(), dp, tp, place);
  for (std::size_t i = 0; i < draft.specs.size(); ++i) {
    stage.owner[at(draft.specs[i])] = place[i] / tp;
    stage.home[at(draft.specs[i])] = place[i] % tp;
  }
}

// Gives items to bins with the least largest load, then with the fewest bytes at the rank with most of them, of all and
// of each bucket.
std::vector<int> optimal_owners(const Draft& draft, int dp) {
  Assignment best = assign_optimal(draft.cost, dp);
  even_bytes(draft.cost, draft.elements(), dp, best);
  even_buckets(draft.cost, draft.elements(), draft.bucket_of(), dp, 1, best.bin);
  return best.bin;
}

std::vector<int> owners_by(const Draft& draft, const ParallelOptions& parallel, int ranks) {
  switch (parallel.partition) {
    case Partition::balanced:
      return balanced_owners(draft.items, draft.buckets, ranks, parallel.alpha);
    case Partition::layerwise:
      return layerwise_owners(draft.items, draft.buckets, ranks);
    case Partition::start_index:
      return start_index_owners(draft.items, draft.buckets, ranks);
    case Partition::replicated:
      return std::vector<int>(draft.items.size(), every_rank);
    case Partition::groups:
    case Partition::optimal:
      break;
  }
  return optimal_owners(draft, ranks);
}

// Lets matrices change owners where that makes the largest load smaller (balance_places).
void balance_experts(StagePlan& stage, const Draft& all, const PlanInput& input) {
  PlacedItems items{all.cost, {}};
  std::vector<int> owner;
  for (const int spec : all.specs) {
    items.place.push_back(holding_rank(stage.specs[at(spec)], input.model, input.parallel));
    owner.push_back(stage.owner[at(spec)]);
  }
  owner = balance_places(items, std::move(owner), input.parallel);
  for (std::size_t i = 0; i < owner.size(); ++i) stage.owner[at(all.specs[i])] = owner[i];
}

// Returns how many tensor-parallel ranks share out the matrices that one data-parallel rank owns.
int homes_of_owner(const ParallelOptions& parallel) { return parallel.tp_update == TpUpdate::home ? parallel.tp : 1; }

// Notes the loads of ranks that all update what they hold, which is equally much.
void bound_replicas(StagePlan& stage, std::vector<std::int64_t> cost, const std::vector<std::int64_t>& of_one_place,
                    const ParallelOptions& parallel) {
  cost.insert(cost.end(), of_one_place.begin(), of_one_place.end());
  stage.dp_bound = std::accumulate(cost.begin(), cost.end(), std::int64_t{0});
  stage.home_bound = assign_optimal(cost, homes_of_owner(parallel)).bound;
}

// Gives experts to ranks that hold them, place by place, and then the other matrices to ranks that have these already.
// Notes the loads below which no assignment goes.
void assign_with_experts(StagePlan& stage, const std::vector<TensorSpec>& local, const PlanInput& input) {
  const ParallelOptions& parallel = input.parallel;
  std::vector<std::int64_t> load(at(parallel.dp), 0), of_one_place;
  for (int place = 0; place < parallel.ep; ++place) {
    const Draft experts = draft(stage, local, input, true, place);
    const std::vector<int> owner = owners_by(experts, parallel, expert_holders(parallel));
    for (std::size_t i = 0; i < owner.size(); ++i) {
      if (owner[i] == every_rank) continue;  // which a stage's matrices have at first: those that hold it
      const int rank = owner[i] * parallel.ep + place;
      stage.owner[at(experts.specs[i])] = rank;
      load[at(rank)] += experts.cost[i];
    }
    if (place == 0) of_one_place = experts.cost;
  }
  const Draft rest = draft(stage, local, input, true, on_all_ranks);
  std::vector<int> owner = owners_by(rest, parallel, parallel.dp);
  if (parallel.partition == Partition::optimal) owner = owners_on_top(rest.cost, std::move(owner), load);
  for (std::size_t i = 0; i < owner.size(); ++i) stage.owner[at(rest.specs[i])] = owner[i];
  if (parallel.partition == Partition::optimal) balance_experts(stage, draft(stage, local, input, true), input);
  ParallelOptions homes = parallel;  // every tensor-parallel rank is one
  homes.dp *= homes_of_owner(parallel);
  if (parallel.partition == Partition::replicated) return bound_replicas(stage, rest.cost, of_one_place, parallel);
  stage.dp_bound = expert_load_bound(rest.cost, of_one_place, parallel);
  stage.home_bound = expert_load_bound(rest.cost, of_one_place, homes);
}

// Returns whether a matrix goes to a home under tensor parallelism: blocks of rotations are updated where they lie.
bool has_home(const StagePlan& stage, int spec) { return !stage.specs[at(spec)].is_packed(); }

// Returns a load of a tensor-parallel rank below which no assignment goes. What each rank of its owner updates its own
// part of counts once for each of them, wherever these are.
std::int64_t home_bound(const StagePlan& stage, const Draft& matrices, int owners, int tp) {
  std::vector<std::int64_t> cost;
  for (std::size_t i = 0; i < matrices.specs.size(); ++i)
    cost.insert(cost.end(), has_home(stage, matrices.specs[i]) ? 1 : at(tp), matrices.cost[i]);
  return assign_optimal(cost, owners * tp).bound;
}

// Chooses homes inside each data-parallel rank, once the owners are known: in turn for start-index, else longest first.
void assign_homes(StagePlan& stage, const Draft& draft, const ParallelOptions& parallel) {
  for (int owner = every_rank; owner < parallel.dp; ++owner) {
    std::vector<int> specs;
    std::vector<std::int64_t> cost;
    for (const int spec : draft.specs)
      if (stage.owner[at(spec)] == owner && has_home(stage, spec)) {
        specs.push_back(spec);
        cost.push_back(stage.cost[at(spec)]);
      }
    const Assignment longest_first = assign_longest_first(cost, parallel.tp);
    for (std::size_t i = 0; i < specs.size(); ++i)
      stage.home[at(specs[i])] =
          parallel.partition == Partition::start_index ? static_cast<int>(i % at(parallel.tp)) : longest_first.bin[i];
  }
}

void add_micro_groups(StagePlan& stage, const PlanInput& input) {
  const ParallelOptions& parallel = input.parallel;
  std::vector<std::vector<HomedMatrix>> owned(at(parallel.dp));
  const std::vector<int> order = backward_order(stage.specs, [&](std::size_t i) { return stage.home[i] >= 0; });
  for (int rank = 0; rank < parallel.dp; ++rank)
    for (const int spec : order)
      if (is_owner(stage, spec, input, rank))
        owned[at(rank)].push_back(
            {spec, stage.home[at(spec)], stage.cost[at(spec)], stage.specs[at(spec)].elements() * f32_bytes});
  for (auto& matrices : owned)
    stage.micro_groups.push_back(micro_groups(std::move(matrices), parallel.tp, parallel.micro_group_bytes));
}

void note_loads(StagePlan& stage, const PlanInput& input) {
  RankLoads loads = rank_loads(stage, input, input.parallel.cost);
  stage.rank_cost = std::move(loads.cost);
  stage.rank_elements = std::move(loads.elements);
}

void assign_groups(StagePlan& stage, const Draft& matrices, const PlanInput& input) {
  deal_shares(stage, input, matrices.specs);
  const std::int64_t total = std::accumulate(stage.cost.begin(), stage.cost.end(), std::int64_t{0});
  stage.dp_bound = (total + input.parallel.dp - 1) / input.parallel.dp;
  note_loads(stage, input);
}

// Chooses owners and homes of the stage's matrices, and notes what follows for the ranks.
void assign(StagePlan& stage, const PlanInput& input) {
  const ParallelOptions& parallel = input.parallel;
  const bool home = homes_of_owner(parallel) > 1;
  const bool replicated = parallel.partition == Partition::replicated;
  const std::vector<TensorSpec> local = local_shapes(stage.specs, input.model, parallel.tp, 0);
  const Draft matrices = draft(stage, local, input, true);
  if (parallel.partition == Partition::groups) return assign_groups(stage, matrices, input);
  if (parallel.ep > 1) {
    assign_with_experts(stage, local, input);
    if (home) assign_homes(stage, matrices, parallel);
    if (home) add_micro_groups(stage, input);
    return note_loads(stage, input);
  }
  const bool all_homed =
      std::all_of(matrices.specs.begin(), matrices.specs.end(), [&stage](int spec) { return has_home(stage, spec); });
  if (home && all_homed && parallel.partition == Partition::optimal) {
    assign_jointly(stage, matrices, input);
  } else {
    const std::vector<int> owner = owners_by(matrices, parallel, parallel.dp);
    for (std::size_t i = 0; i < owner.size(); ++i) stage.owner[at(matrices.specs[i])] = owner[i];
    if (home) assign_homes(stage, matrices, parallel);
  }
  if (home) add_micro_groups(stage, input);
  const std::int64_t total = std::accumulate(matrices.cost.begin(), matrices.cost.end(), std::int64_t{0});
  stage.dp_bound = replicated ? total : assign_optimal(matrices.cost, parallel.dp).bound;
  stage.home_bound = home ? home_bound(stage, matrices, replicated ? 1 : parallel.dp, parallel.tp) : stage.dp_bound;
  note_loads(stage, input);
}

// Returns the largest over the mean of values gathered from all stages.
double ratio_of(const std::vector<std::int64_t>& load) {
  double largest = 0, sum = 0;
  for (const std::int64_t x : load) {
    largest = std::max(largest, static_cast<double>(x));
    sum += static_cast<double>(x);
  }
  return sum > 0 ? largest * static_cast<double>(load.size()) / sum : 1;
}

double mean_of(const std::vector<std::int64_t>& load) {
  return load.empty() ? 0 : std::accumulate(load.begin(), load.end(), 0.0, [](double sum, std::int64_t x) {
                              return sum + static_cast<double>(x);
                            }) / static_cast<double>(load.size());
}

// Returns what the rank that receives most of each bucket receives, over the mean; no tensor is received in parts.
LoadRatio received(const Plan& plan) {
  double most = 0, least = 0, mean = 0;
  for (const StagePlan& stage : plan.stages)
    for (const BucketLayout& bucket : stage.buckets) {
      if (bucket.cut.empty()) continue;
      std::int64_t shard = 0, tensor = 0;
      const std::size_t ranks = bucket.cut.size() - 1;
      for (std::size_t rank = 0; rank < ranks; ++rank) shard = std::max(shard, bucket.cut[rank + 1] - bucket.cut[rank]);
      for (std::size_t i = 0; i < bucket.specs.size(); ++i)
        tensor =
            std::max(tensor, (i + 1 < bucket.specs.size() ? bucket.offset[i + 1] : bucket.elements) - bucket.offset[i]);
      const double even = static_cast<double>(bucket.elements) / static_cast<double>(ranks);
      most += static_cast<double>(shard);
      least += std::max(static_cast<double>(tensor), even);
      mean += even;
    }
  return mean > 0 ? LoadRatio{most / mean, least / mean} : LoadRatio{};
}

void add_ratios(Plan& plan, const ParallelOptions& parallel) {
  std::vector<std::int64_t> cost, elements, homes;
  std::int64_t dp_bound = 0, home_bound = 0;
  double undivided = 0;
  for (const StagePlan& stage : plan.stages) {
    std::vector<std::int64_t> rank_cost(at(plan.dp), 0), rank_elements(at(plan.dp), 0);
    for (std::size_t i = 0; i < stage.specs.size(); ++i)
      for (int rank = 0; rank < plan.dp; ++rank)
        if (stage.home[i] != in_shares && is_owner(stage, static_cast<int>(i), plan.input, rank)) {
          rank_cost[at(rank)] += stage.cost[i];
          rank_elements[at(rank)] += stage.specs[i].elements();
        }
    for (const MatrixShare& share : stage.shares) {
      rank_cost[at(share.rank / plan.tp)] += share.cost;
      rank_elements[at(share.rank / plan.tp)] += share.elements();
    }
    undivided = std::accumulate(stage.cost.begin(), stage.cost.end(), undivided,
                                [](double sum, std::int64_t x) { return sum + static_cast<double>(x); });
    cost.insert(cost.end(), rank_cost.begin(), rank_cost.end());
    elements.insert(elements.end(), rank_elements.begin(), rank_elements.end());
    homes.insert(homes.end(), stage.rank_cost.begin(), stage.rank_cost.end());
    dp_bound = std::max(dp_bound, stage.dp_bound);
    home_bound = std::max(home_bound, stage.home_bound);
  }
  const auto bound = [](std::int64_t load, double mean) { return mean > 0 ? static_cast<double>(load) / mean : 1; };
  plan.dp_cost = {ratio_of(cost), bound(dp_bound, mean_of(cost))};
  plan.dp_elements = {ratio_of(elements), 1};
  plan.dp_received = received(plan);
  const bool home = homes_of_owner(parallel) > 1;
  plan.home_cost = home ? LoadRatio{ratio_of(homes), bound(home_bound, mean_of(homes))} : plan.dp_cost;
  plan.machine_cost = {ratio_of(homes), plan.home_cost.bound};
  if (parallel.partition != Partition::groups || undivided == 0) return;
  const double mean = undivided / static_cast<double>(homes.size());
  plan.machine_cost = {static_cast<double>(*std::max_element(homes.begin(), homes.end())) / mean,
                       bound(home_bound, mean)};
}

}  // namespace

LayerRange stage_layers(const PlanInput& input, int stage) {
  const ParallelOptions& parallel = input.parallel;
  const auto edge = [&](int s) {
    if (parallel.stage_layers.empty()) return static_cast<int>(input.model.num_hidden_layers * s / parallel.pp);
    return std::accumulate(parallel.stage_layers.begin(), parallel.stage_layers.begin() + s, 0);
  };
  return {edge(stage), edge(stage + 1)};
}

void lay_out_buckets(StagePlan& stage, const PlanInput& input, int tp_rank, int dp_rank) {
  // The same tensors share a bucket on every rank: the buckets follow from the shards of rank 0.
  const int dp = input.parallel.dp, tp = input.parallel.tp;
  const auto shapes = [&](int rank) { return local_shapes(stage.specs, input.model, tp, rank); };
  const std::vector<TensorSpec> first = shapes(0), other = tp_rank == 0 ? std::vector<TensorSpec>{} : shapes(tp_rank);
  const std::vector<TensorSpec>& local = tp_rank == 0 ? first : other;
  const auto numbers = [&](bool matrices, int where) {
    return numbers_of_specs(draft(stage, first, input, matrices, where));
  };
  stage.buckets = matrix_buckets(local, stage.owner, numbers(true, on_all_ranks), dp);
  stage.scalar_buckets = row_buckets(local, numbers(false, on_all_ranks), dp);
  if (input.parallel.ep == 1) return;
  const int place = expert_rank(input.parallel, dp_rank), holders = expert_holders(input.parallel);
  std::vector<int> holder = stage.owner;  // the number of the owner among those that hold the same experts
  for (int& owner : holder) owner = owner < 0 ? owner : owner / input.parallel.ep;
  for (BucketLayout& bucket : matrix_buckets(local, holder, numbers(true, place), holders))
    stage.buckets.push_back(std::move(bucket));
  for (BucketLayout& bucket : row_buckets(local, numbers(false, place), holders))
    stage.scalar_buckets.push_back(std::move(bucket));
}

StagePlan plan_stage(const PlanInput& input, LayerRange layers) {
  StagePlan stage;
  stage.layers = layers;
  stage.specs = tensor_specs(input.model, layers);
  RankCosts cost(input, input.parallel.cost);
  for (const TensorSpec& spec : stage.specs) {
    const bool matrix = is_matrix_optimized(spec, input.optimizer);
    stage.cost.push_back(matrix ? cost.of(spec, 0) : 0);
    stage.owner.push_back(matrix ? every_rank : scalar_tensor);
    stage.home.push_back(!matrix ? scalar_tensor : input.parallel.tp == 1 ? 0 : every_rank);
  }
  assign(stage, input);
  lay_out_buckets(stage, input, 0);
  return stage;
}

BatchShare batch_share(const PlanInput& input, int dp_rank) {
  const int ranks = input.parallel.dp;
  BatchShare share;
  share.micro_batch = shared_micro_batch(input.train, ranks);
  share.all = input.train.global_batch / share.micro_batch;
  share.first = share.all * dp_rank / ranks;
  share.count = share.all * (dp_rank + 1) / ranks - share.first;
  if (!gradients_in_turn(input.parallel)) return share;
  share.first = dp_rank;
  share.stride = ranks;
  return share;
}

BatchShare largest_share(const PlanInput& input) {
  BatchShare share = batch_share(input, input.parallel.dp - 1);
  share.count = std::max(share.count, 1);
  return share;
}

Plan make_plan(const PlanInput& input) {
  require_machine(input.parallel.cost, input.machine);
  require_link(input.optimizer, input.machine);
  Plan plan;
  plan.input = input;
  plan.dp = input.parallel.dp;
  plan.tp = input.parallel.tp;
  plan.pp = input.parallel.pp;
  for (int stage = 0; stage < plan.pp; ++stage) plan.stages.push_back(plan_stage(input, stage_layers(input, stage)));
  plan.pipe = pipeline_options(input.parallel, input.pipeline_ranks > 0 ? input.pipeline_ranks : plan.pp,
                               largest_share(input).count);
  plan.schedule = make_schedule(plan.pipe);
  plan_refreshes(plan);
  add_ratios(plan, input.parallel);
  plan.coherence = plan_coherence(input, plan.stages);
  return plan;
}

}  // namespace sestina
