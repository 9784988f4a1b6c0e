#include "parallel/plan/shard_layout.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "core/deck/options.hpp"
#include "core/layout/rank_layout.hpp"
#include "core/optimizer/base/routing.hpp"
#include "parallel/plan/block_turns.hpp"
#include "parallel/plan/expert_layout.hpp"
#include "parallel/plan/expert_owners.hpp"

namespace sestina {

namespace {

// Returns even parts; where they do not divide, the first ones are larger by one.
TensorShard even(TensorShard::Cut cut, std::int64_t size, int parts, int part) {
  const auto edge = [&](std::int64_t p) { return (size * p + parts - 1) / parts; };
  return {cut, edge(part), edge(part + 1)};
}

// Returns a rank's part of a side that all ranks of the group share. Of sides of a layer those as long as those of the
// MLP are cut as these are: heads and what forms of weights cut divide evenly either way.
TensorShard part_of_side(TensorShard::Cut cut, std::int64_t size, const TensorSpec& spec, const ModelConfig& model,
                         int tp, int tp_rank) {
  if (spec.layer < 0 || size != model.intermediate_size) return even(cut, size, tp, tp_rank);
  return {cut, first_of_mlp(model, tp, tp_rank), first_of_mlp(model, tp, tp_rank + 1)};
}

}  // namespace

TensorShard tensor_shard(const TensorSpec& spec, const ModelConfig& model, int tp, int tp_rank) {
  using Cut = TensorShard::Cut;
  const TensorCut cut = tp == 1 ? TensorCut::none : spec.cut;
  const auto heads = static_cast<int>(model.num_key_value_heads);
  switch (cut) {
    case TensorCut::none:
      break;
    case TensorCut::rows:
      return part_of_side(Cut::rows, spec.rows, spec, model, tp, tp_rank);
    case TensorCut::key_value:
      return heads >= tp ? even(Cut::rows, spec.rows, tp, tp_rank)
                         : even(Cut::rows, spec.rows, heads, static_cast<int>(std::int64_t{tp_rank} * heads / tp));
    case TensorCut::cols:
      return part_of_side(Cut::cols, spec.cols, spec, model, tp, tp_rank);
  }
  return {Cut::none, 0, spec.rows};
}

TensorSpec local_shape(const TensorSpec& spec, const ModelConfig& model, int tp, int tp_rank) {
  TensorSpec local;  // all but names, of which a plan of many ranks would make very many
  local.rows = spec.rows;
  local.cols = spec.cols;
  local.role = spec.role;
  local.layer = spec.layer;
  local.block = spec.block;
  local.follows = spec.follows;
  local.heads = spec.heads;
  local.cut = spec.cut;
  local.gradient_of = spec.gradient_of;
  local.initial = spec.initial;
  local.projection = spec.projection;
  local.ends_branch = spec.ends_branch;
  local.of_norm = spec.of_norm;
  local.part = spec.part;
  local.trainable = spec.trainable;
  local.stored = spec.stored;
  local.group = spec.group;
  local.expert = spec.expert;
  local.skew_block = spec.skew_block;
  const TensorShard shard = tensor_shard(spec, model, tp, tp_rank);
  (shard.cut == TensorShard::Cut::cols ? local.cols : local.rows) = shard.end - shard.begin;
  if (spec.heads > 0 && spec.rows > 0)  // the heads of the shard: cuts fall between heads
    local.heads = static_cast<int>(spec.heads * local.rows / spec.rows);
  return local;
}

TensorSpec local_spec(const TensorSpec& spec, const ModelConfig& model, int tp, int tp_rank) {
  TensorSpec local = local_shape(spec, model, tp, tp_rank);
  local.name = spec.name;
  local.weight = spec.weight;
  return local;
}

std::vector<TensorSpec> local_shapes(const std::vector<TensorSpec>& specs, const ModelConfig& model, int tp,
                                     int tp_rank) {
  std::vector<TensorSpec> local;
  local.reserve(specs.size());
  for (const TensorSpec& spec : specs) local.push_back(local_shape(spec, model, tp, tp_rank));
  return local;
}

namespace {

// Exchanges one home of the heaviest group against one of another while that makes the heaviest lighter.
void exchange(const std::vector<std::int64_t>& bytes, std::vector<std::vector<int>>& group,
              std::vector<std::int64_t>& load) {
  constexpr std::size_t most_work = 100'000'000;  // pairs to look at; with very many ranks there is little to gain
  const std::size_t rounds = std::min(group.size(), most_work / (group.size() * group[0].size() * group[0].size()));
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto from = static_cast<std::size_t>(std::max_element(load.begin(), load.end()) - load.begin());
    std::int64_t best = load[from], moved = 0;
    std::size_t best_to = from, best_give = 0, best_take = 0;
    for (std::size_t to = 0; to < group.size(); ++to)
      for (std::size_t give = 0; give < group[from].size(); ++give)
        for (std::size_t take = 0; take < group[to].size(); ++take) {
          const std::int64_t less = bytes[at(group[from][give])] - bytes[at(group[to][take])];
          const std::int64_t heavier = std::max(load[from] - less, load[to] + less);
          if (less <= 0 || heavier >= best) continue;
          best = heavier;
          moved = less;
          best_to = to;
          best_give = give;
          best_take = take;
        }
    if (best_to == from) return;
    std::swap(group[from][best_give], group[best_to][best_take]);
    load[from] -= moved;
    load[best_to] += moved;
  }
}

// Returns the bytes after which a group is full enough for another one to begin: with few groups the exchanges of the
// first and of the last are most of all that there are, with very small ones messages cost more than they hide.
std::int64_t enough_bytes(const std::vector<HomedMatrix>& matrices, int tp) {
  constexpr std::int64_t usual_groups = 4, least_at_home = std::int64_t{4} << 20;
  std::int64_t all = 0;
  for (const HomedMatrix& matrix : matrices) all += matrix.bytes;
  return std::max(all / usual_groups, least_at_home * tp);
}

}  // namespace

std::vector<int> group_homes(const std::vector<std::int64_t>& bytes, int dp, int tp) {
  std::vector<int> order(bytes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return bytes[at(a)] > bytes[at(b)]; });
  std::vector<std::vector<int>> group(at(dp));
  std::vector<std::int64_t> load(at(dp), 0);
  using Slot = std::pair<std::int64_t, int>;  // load of a group with room, and its number
  std::priority_queue<Slot, std::vector<Slot>, std::greater<>> least;
  for (int g = 0; g < dp; ++g) least.emplace(0, g);
  for (const int home : order) {
    const int g = least.top().second;
    least.pop();
    group[at(g)].push_back(home);
    load[at(g)] += bytes[at(home)];
    if (group[at(g)].size() < at(tp)) least.emplace(load[at(g)], g);
  }
  exchange(bytes, group, load);
  std::vector<int> rank(bytes.size());
  for (int g = 0; g < dp; ++g)
    for (int t = 0; t < tp; ++t) rank[at(group[at(g)][at(t)])] = g * tp + t;
  return rank;
}

std::vector<MicroGroup> micro_groups(std::vector<HomedMatrix> matrices, int tp, std::int64_t most_bytes) {
  std::stable_sort(matrices.begin(), matrices.end(),
                   [](const HomedMatrix& a, const HomedMatrix& b) { return a.cost > b.cost; });
  struct Turn {
    std::int64_t start;
    const HomedMatrix* matrix;
  };
  std::vector<Turn> turns;
  std::vector<std::int64_t> busy(at(tp), 0);
  for (const HomedMatrix& matrix : matrices) {
    turns.push_back({busy[at(matrix.home)], &matrix});
    busy[at(matrix.home)] += matrix.cost;
    most_bytes = std::max(most_bytes, matrix.bytes);
  }
  std::stable_sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) { return a.start < b.start; });
  std::vector<MicroGroup> groups;
  std::vector<std::int64_t> held(at(tp), 0);
  const std::int64_t enough = enough_bytes(matrices, tp);
  for (const Turn& turn : turns) {
    const HomedMatrix& matrix = *turn.matrix;
    const std::int64_t all = std::accumulate(held.begin(), held.end(), std::int64_t{0});
    const bool hides = turn.start > 0 && all >= enough;  // what a home takes first is the work that hides others
    if (groups.empty() || hides || held[at(matrix.home)] + matrix.bytes > most_bytes) {
      groups.emplace_back();
      std::fill(held.begin(), held.end(), 0);
    }
    held[at(matrix.home)] += matrix.bytes;
    groups.back().specs.push_back(matrix.spec);
    groups.back().bytes = std::max(groups.back().bytes, held[at(matrix.home)]);
  }
  return groups;
}

namespace {

std::int64_t aligned(std::int64_t elements) {
  constexpr auto to = static_cast<std::int64_t>(arena_alignment);
  return (elements + to - 1) / to * to;
}

// Places the specs one after the other. `adjoin` says whether one may follow its neighbour without a gap.
template <class Adjoin>
BucketLayout place(const std::vector<TensorSpec>& local, std::vector<int> specs, Adjoin adjoin) {
  BucketLayout bucket;
  bucket.specs = std::move(specs);
  bucket.block = local[at(bucket.specs.front())].block;
  for (std::size_t i = 0; i < bucket.specs.size(); ++i) {
    const int spec = bucket.specs[i];
    const bool follows = i > 0 && local[at(spec)].follows && bucket.specs[i - 1] == spec - 1;
    if (!follows || !adjoin(bucket.specs[i - 1], spec)) bucket.elements = aligned(bucket.elements);
    bucket.offset.push_back(bucket.elements);
    bucket.elements += local[at(spec)].elements();
    bucket.block = std::min(bucket.block, local[at(spec)].block);
  }
  bucket.elements = aligned(bucket.elements);
  return bucket;
}

// Returns the boundary between chunks of rows nearest to a place in the bucket; after a tensor's last row the next
// tensor begins.
std::int64_t nearest_row(const std::vector<TensorSpec>& local, const BucketLayout& bucket, std::int64_t place) {
  const auto next = std::upper_bound(bucket.offset.begin(), bucket.offset.end(), place);
  const auto i = static_cast<std::size_t>(next - bucket.offset.begin()) - 1;
  const TensorSpec& spec = local[at(bucket.specs[i])];
  const std::int64_t rows = chunk_rows(spec), chunk = rows * spec.cols;
  const std::int64_t row = (place - bucket.offset[i] + chunk / 2) / chunk * rows;
  if (row < spec.rows) return bucket.offset[i] + row * spec.cols;
  return next == bucket.offset.end() ? bucket.elements : *next;
}

}  // namespace

std::vector<BucketLayout> matrix_buckets(const std::vector<TensorSpec>& local, const std::vector<int>& owner,
                                         const Buckets& buckets, int dp) {
  std::vector<BucketLayout> layouts;
  for (std::vector<int> specs : buckets) {
    std::stable_sort(specs.begin(), specs.end(), [&](int a, int b) { return owner[at(a)] < owner[at(b)]; });
    BucketLayout bucket = place(local, std::move(specs), [&](int a, int b) { return owner[at(a)] == owner[at(b)]; });
    if (owner[at(bucket.specs.front())] != every_rank) {
      std::size_t i = 0;
      for (int rank = 0; rank <= dp; ++rank) {
        while (i < bucket.specs.size() && owner[at(bucket.specs[i])] < rank) ++i;
        bucket.cut.push_back(i < bucket.specs.size() ? bucket.offset[i] : bucket.elements);
      }
      bucket.cut.front() = 0;
    }
    layouts.push_back(std::move(bucket));
  }
  return layouts;
}

std::vector<BucketLayout> row_buckets(const std::vector<TensorSpec>& local, const Buckets& buckets, int dp) {
  std::vector<BucketLayout> layouts;
  for (const std::vector<int>& specs : buckets) {
    BucketLayout bucket = place(local, specs, [](int, int) { return true; });
    for (std::int64_t rank = 0; rank < dp; ++rank)
      bucket.cut.push_back(nearest_row(local, bucket, bucket.elements / dp * rank + bucket.elements % dp * rank / dp));
    bucket.cut.push_back(bucket.elements);
    layouts.push_back(std::move(bucket));
  }
  return layouts;
}

bool is_homed(const StagePlan& stage, int spec, const ParallelOptions& parallel) {
  using TpUpdate = ParallelOptions::TpUpdate;
  if (stage.home[at(spec)] == in_shares) return true;
  return parallel.tp > 1 && stage.is_matrix(spec) && !stage.specs[at(spec)].is_packed() &&
         (parallel.tp_update == TpUpdate::home || parallel.tp_update == TpUpdate::duplicated);
}

std::int64_t GradientBuckets::sum_begin(std::size_t bucket, int dp_rank) const {
  const auto comes_before = [&](std::size_t b) {
    if (bucket == buckets.size()) return true;
    return of_experts[b] == of_experts[bucket] ? b < bucket : of_experts[bucket];
  };
  std::int64_t end = begin.back();
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const std::size_t own = at(piece(b, dp_rank));
    if (comes_before(b)) end += aligned(buckets[b].cut[own + 1] - buckets[b].cut[own]);
  }
  return end;
}

GradientBuckets gradient_buckets(const StagePlan& stage, const ParallelOptions& parallel) {
  GradientBuckets all;
  all.ep = parallel.ep;
  all.to_all = parallel.reduce == ParallelOptions::Reduce::all;
  all.buckets = stage.buckets;
  all.buckets.insert(all.buckets.end(), stage.scalar_buckets.begin(), stage.scalar_buckets.end());
  all.place.resize(stage.specs.size());
  std::int64_t begin = 0;
  for (std::size_t b = 0; b < all.buckets.size(); ++b) {
    const BucketLayout& bucket = all.buckets[b];
    all.of_experts.push_back(is_of_experts(stage, bucket, parallel.ep));
    all.begin.push_back(begin);
    begin += bucket.elements;
    for (std::size_t i = 0; i < bucket.specs.size(); ++i)
      all.place[at(bucket.specs[i])] = {static_cast<int>(b), static_cast<int>(i)};
  }
  all.begin.push_back(begin);
  if (!gradients_in_turn(parallel)) return all;
  const TurnLayout turns = bucket_turns(stage, all.buckets);
  all.begin = turns.begin;
  all.begin.push_back(turns.elements);
  for (const BucketLayout& bucket : all.buckets) all.turn.push_back(place_of_block(stage, bucket.block));
  return all;
}

OwnedRows owned_rows(const StagePlan& stage, const GradientBuckets& all, int spec, const TensorSpec& local,
                     int dp_rank) {
  const int owner = stage.owner[at(spec)];
  if (owner != scalar_tensor) return owner == every_rank || owner == dp_rank ? OwnedRows{0, local.rows} : OwnedRows{};
  if (local.rows == 0) return {};  // an expert of other ranks
  const BucketPlace place = all.place[at(spec)];
  const BucketLayout& bucket = all.buckets[at(place.bucket)];
  const std::int64_t offset = bucket.offset[at(place.entry)];
  const int piece = all.piece(at(place.bucket), dp_rank);
  const auto row = [&](std::int64_t cut) {
    return std::clamp<std::int64_t>(cut - offset, 0, local.elements()) / local.cols;
  };
  return {row(bucket.cut[at(piece)]), row(bucket.cut[at(piece) + 1])};
}

RankLayout shards_of_rank(const StagePlan& stage, const PlanInput& input, int dp_rank, int tp_rank) {
  const int tp = input.parallel.tp;
  const bool in_turn = weights_in_turn(input);
  if (input.parallel.dp * tp == 1) {
    RankLayout layout = lone_layout(stage.specs);
    layout.weights_in_turn = in_turn;
    if (in_turn) place_weights(stage, layout);
    return layout;
  }
  std::vector<TensorSpec> shards = local_shapes(stage.specs, input.model, tp, tp_rank);
  drop_other_experts(shards, input, dp_rank);
  RankLayout layout;
  layout.weights_in_turn = in_turn;
  for (int spec = 0; spec < static_cast<int>(stage.specs.size()); ++spec) {
    TensorHolding tensor;
    tensor.whole = stage.specs[at(spec)];
    tensor.local = std::move(shards[at(spec)]);
    tensor.local.name = tensor.whole.name;
    tensor.local.weight = tensor.whole.weight;
    const TensorShard shard = tensor_shard(tensor.whole, input.model, tp, tp_rank);
    (shard.cut == TensorShard::Cut::cols ? tensor.col_begin : tensor.row_begin) = shard.begin;
    tensor.counted = shard_holders(tensor.whole, input.model, tp, tp_rank).first == tp_rank;
    if (tensor.whole.trainable) {
      tensor.row_sharded = !stage.is_matrix(spec) && input.parallel.dp > 1;
      tensor.homed = is_homed(stage, spec, input.parallel);
      tensor.sharded = is_sharded(tensor.whole, input);
    }
    layout.tensors.push_back(std::move(tensor));
  }
  if (in_turn) place_weights(stage, layout);
  return layout;
}

void own_rows(RankLayout& layout, const StagePlan& stage, const GradientBuckets& all, const PlanInput& input,
              int dp_rank) {
  if (input.parallel.dp * input.parallel.tp == 1) return;
  for (int spec = 0; spec < static_cast<int>(layout.tensors.size()); ++spec) {
    TensorHolding& tensor = layout.tensors[at(spec)];
    if (!tensor.whole.trainable) {  // every data-parallel rank has it and nobody updates it
      tensor.saved = dp_rank == 0 && tensor.counted;
      continue;
    }
    const OwnedRows rows = owned_rows(stage, all, spec, tensor.local, dp_rank);
    tensor.owned_begin = rows.begin;
    tensor.owned_end = rows.end;
    tensor.saved = is_first_owner(stage, spec, input, dp_rank) && tensor.counted;
    const BucketPlace place = all.place[at(spec)];
    const BucketLayout& bucket = all.buckets[at(place.bucket)];
    const std::int64_t offset = bucket.offset[at(place.entry)];
    tensor.gradient_offset = static_cast<std::size_t>(all.begin[at(place.bucket)] + offset);
    if (all.in_turn() && rows.begin < rows.end)
      tensor.sum_offset =
          static_cast<std::size_t>(all.sum_begin(at(place.bucket), dp_rank) + offset + rows.begin * tensor.local.cols -
                                   bucket.cut[at(all.piece(at(place.bucket), dp_rank))]);
  }
  layout.gradients_in_turn = all.in_turn();
  layout.gradient_elements = static_cast<std::size_t>(all.begin.back() + (all.in_turn() ? all.sums_size(dp_rank) : 0));
}

RankLayout shard_layout(const StagePlan& stage, const GradientBuckets& all, const PlanInput& input, int dp_rank,
                        int tp_rank) {
  RankLayout layout = shards_of_rank(stage, input, dp_rank, tp_rank);
  own_rows(layout, stage, all, input, dp_rank);
  return layout;
}

std::vector<std::vector<int>> homed_groups(const StagePlan& stage, const PlanInput& input, int dp_rank) {
  const ParallelOptions& parallel = input.parallel;
  using TpUpdate = ParallelOptions::TpUpdate;
  std::vector<std::vector<int>> groups;
  if (parallel.tp == 1 || parallel.partition == ParallelOptions::Partition::groups) return groups;
  if (parallel.tp_update == TpUpdate::home)
    for (const MicroGroup& group : stage.micro_groups[at(dp_rank)]) groups.push_back(group.specs);
  if (parallel.tp_update == TpUpdate::duplicated)
    for (const int spec :
         backward_order(stage.specs, [&](std::size_t i) { return is_homed(stage, static_cast<int>(i), parallel); }))
      if (is_owner(stage, spec, input, dp_rank)) groups.push_back({spec});
  return groups;
}

bool is_home(const StagePlan& stage, int spec, int tp_rank) {
  return stage.home[at(spec)] == tp_rank || stage.home[at(spec)] == every_rank;
}

bool is_sharded(const TensorSpec& spec, const PlanInput& input) {
  const int tp = input.parallel.tp;
  if (tp == 1 || input.parallel.tp_update != ParallelOptions::TpUpdate::distributed) return false;
  return is_matrix_optimized(spec, input.optimizer) && find_matrix_kind(input.optimizer.matrix->kind)->shard_work &&
         !is_by_head(spec, input.optimizer) && !spec.is_packed() &&
         local_spec(spec, input.model, tp, 0).elements() != spec.elements();
}

ShardHolders shard_holders(const TensorSpec& spec, const ModelConfig& model, int tp, int tp_rank) {
  const TensorShard own = tensor_shard(spec, model, tp, tp_rank);
  const auto same = [&](int rank) {
    const TensorShard other = tensor_shard(spec, model, tp, rank);
    return other.begin == own.begin && other.end == own.end;
  };
  ShardHolders holders{tp_rank, 1};
  while (holders.first > 0 && same(holders.first - 1)) --holders.first;
  holders.count = tp_rank - holders.first + 1;
  while (holders.first + holders.count < tp && same(holders.first + holders.count)) ++holders.count;
  return holders;
}

}  // namespace sestina
