#include "parallel/plan/shard_layout.hpp"

#include <algorithm>

#include "core/layout/model_part.hpp"
#include "core/optimizer/base/routing.hpp"
#include "parallel/plan/tensor_shard.hpp"

namespace sestina {

bool is_homed(const StagePlan& stage, int spec, const ParallelOptions& parallel) {
  using TpUpdate = ParallelOptions::TpUpdate;
  return parallel.tp > 1 && stage.is_matrix(spec) &&
         (parallel.tp_update == TpUpdate::home || parallel.tp_update == TpUpdate::duplicated);
}

GradientBuckets gradient_buckets(const StagePlan& stage) {
  GradientBuckets all;
  all.buckets = stage.buckets;
  all.buckets.insert(all.buckets.end(), stage.scalar_buckets.begin(), stage.scalar_buckets.end());
  all.place.resize(stage.specs.size());
  std::int64_t begin = 0;
  for (std::size_t b = 0; b < all.buckets.size(); ++b) {
    const BucketLayout& bucket = all.buckets[b];
    all.begin.push_back(begin);
    begin += bucket.elements;
    for (std::size_t i = 0; i < bucket.specs.size(); ++i)
      all.place[at(bucket.specs[i])] = {static_cast<int>(b), static_cast<int>(i)};
  }
  all.begin.push_back(begin);
  return all;
}

OwnedRows owned_rows(const StagePlan& stage, const GradientBuckets& all, int spec, const TensorSpec& local,
                     int dp_rank) {
  const int owner = stage.owner[at(spec)];
  if (owner != scalar_tensor) return owner == every_rank || owner == dp_rank ? OwnedRows{0, local.rows} : OwnedRows{};
  const BucketPlace place = all.place[at(spec)];
  const BucketLayout& bucket = all.buckets[at(place.bucket)];
  const std::int64_t offset = bucket.offset[at(place.entry)];
  const auto row = [&](std::int64_t cut) {
    return std::clamp<std::int64_t>(cut - offset, 0, local.elements()) / local.cols;
  };
  return {row(bucket.cut[at(dp_rank)]), row(bucket.cut[at(dp_rank) + 1])};
}

RankLayout shard_layout(const StagePlan& stage, const GradientBuckets& all, const PlanInput& input, int dp_rank,
                        int tp_rank) {
  const int tp = input.parallel.tp;
  RankLayout layout;
  for (int spec = 0; spec < static_cast<int>(stage.specs.size()); ++spec) {
    TensorHolding tensor;
    tensor.whole = stage.specs[at(spec)];
    tensor.local = local_spec(tensor.whole, input.model, tp, tp_rank);
    const TensorShard shard = tensor_shard(tensor.whole, input.model, tp, tp_rank);
    (shard.cut == TensorShard::Cut::cols ? tensor.col_begin : tensor.row_begin) = shard.begin;
    tensor.counted = shard_holders(tensor.whole, input.model, tp, tp_rank).first == tp_rank;
    if (!tensor.whole.trainable) {  // every data-parallel rank has it and nobody updates it
      tensor.saved = dp_rank == 0 && tensor.counted;
      layout.tensors.push_back(std::move(tensor));
      continue;
    }
    const OwnedRows rows = owned_rows(stage, all, spec, tensor.local, dp_rank);
    tensor.owned_begin = rows.begin;
    tensor.owned_end = rows.end;
    tensor.row_sharded = !stage.is_matrix(spec) && input.parallel.dp > 1;
    tensor.homed = is_homed(stage, spec, input.parallel);
    const bool copied = stage.owner[at(spec)] == every_rank && dp_rank > 0;
    tensor.sharded = is_sharded(tensor.whole, input);
    tensor.saved = !copied && tensor.counted;
    const BucketPlace place = all.place[at(spec)];
    tensor.gradient_offset =
        static_cast<std::size_t>(all.begin[at(place.bucket)] + all.buckets[at(place.bucket)].offset[at(place.entry)]);
    layout.tensors.push_back(std::move(tensor));
  }
  layout.gradient_elements = static_cast<std::size_t>(all.begin.back());
  return layout;
}

bool is_sharded(const TensorSpec& spec, const PlanInput& input) {
  const int tp = input.parallel.tp;
  if (tp == 1 || input.parallel.tp_update != ParallelOptions::TpUpdate::distributed) return false;
  return is_matrix_optimized(spec, input.optimizer) && find_matrix_kind(input.optimizer.matrix->kind)->shard_work &&
         matrix_parts(spec, input.optimizer).size() == 1 &&
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

std::vector<PartialRun> partial_runs(const StagePlan& stage, const GradientBuckets& all, const PlanInput& input) {
  const ParallelOptions& parallel = input.parallel;
  std::vector<PartialRun> runs;
  if (parallel.tp == 1) return runs;
  for (std::size_t b = 0; b < all.buckets.size(); ++b) {
    const BucketLayout& bucket = all.buckets[b];
    bool open = false;  // the run that was made last ends where this tensor begins
    for (std::size_t i = 0; i < bucket.specs.size(); ++i) {
      const TensorSpec& spec = stage.specs[static_cast<std::size_t>(bucket.specs[i])];
      if (!gradient_is_partial(spec, input.model, parallel.tp, parallel.sequence_parallel)) {
        open = false;
        continue;
      }
      const bool same_heads = shard_holders(spec, input.model, parallel.tp, 0).count < parallel.tp;
      const std::int64_t begin = all.begin[b] + bucket.offset[i];
      if (!open || runs.back().block != spec.block || runs.back().same_heads != same_heads)
        runs.push_back({spec.block, begin, 0, same_heads});
      runs.back().elements = begin + local_shape(spec, input.model, parallel.tp, 0).elements() - runs.back().begin;
      open = true;
    }
  }
  return runs;
}

}  // namespace sestina
