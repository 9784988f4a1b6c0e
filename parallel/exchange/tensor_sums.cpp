#include "parallel/exchange/tensor_sums.hpp"

#include <algorithm>

#include "core/layout/model_size.hpp"
#include "core/optimizer/base/stream_scratch.hpp"
#include "parallel/comm/group_staging.hpp"
#include "parallel/plan/block_turns.hpp"
#include "parallel/plan/expert_owners.hpp"

namespace sestina {
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

// The model's own sums, by micro-batch (core/model). Attention and MLP each end with one, forward and backward, as
// do the embedding and the head; a layer that is computed again needs the one after its MLP only where a norm follows.
// A mixture of experts sums the gradients of the weights of choices on its way backward.
std::vector<TensorSum> sums_of_passes(const StagePlan& stage, const PlanInput& input, const ModelPart& part) {
  std::vector<TensorSum> sums;
  if (part.tp == 1) return sums;
  const StorageWidth width = width_of(input);
  const BatchShare batch = largest_share(input);
  const std::int64_t tokens = std::int64_t{batch.micro_batch} * input.sequence_length, micros = batch.count;
  const std::int64_t layers = stage.layers.end - stage.layers.begin, stream = tokens * input.model.hidden_size;
  const bool first = stage.layers.begin == 0, last = stage.layers.end == input.model.num_hidden_layers;
  const bool post_norm = input.model.family == Family::olmo2, again = input.train.recompute;
  const std::int64_t streams =
      micros * (layers * (4 + (again ? (post_norm ? 2 : 1) : 0)) + (first ? 1 : 0) + (last ? 1 : 0));
  sums.push_back({.what = "activations",
                  .count = streams,
                  .elements = streams * stream,
                  .largest = stream,
                  .width = width.compute,
                  .scatters_rows = part.splits_rows()});
  if (input.model.has_experts()) {
    const std::int64_t choices = tokens * input.model.num_experts_per_tok;
    sums.push_back({"choice weights", micros * layers, micros * layers * choices, choices, width.accumulate});
  }
  if (post_norm) {  // the squares of q and k of each row, over all heads
    const std::int64_t norms = micros * layers * (again ? 3 : 2);
    sums.push_back({"norms of q and k", norms, norms * 2 * tokens, 2 * tokens, width.accumulate});
  }
  if (last) {  // slice by slice of each row the largest logit; then the sum of exponentials and the target's logit
    const std::int64_t rows = logit_rows(part, static_cast<int>(tokens), width.compute);
    const std::int64_t slices = (tokens + rows - 1) / rows;
    sums.push_back({"loss", micros * 2 * slices, micros * 3 * tokens, 2 * rows, width.accumulate});
  }
  return sums;
}

// Those of matrices that are updated where their shards are (core/optimizer/methods/sharded_muon.hpp): the norm, a
// Gram matrix of the side that is not cut each time, and moments.
std::vector<TensorSum> sums_of_updates(const StagePlan& stage, const PlanInput& input, const ModelPart& part,
                                       int dp_rank) {
  std::vector<TensorSum> sums;
  if (part.tp == 1 || input.parallel.tp_update != ParallelOptions::TpUpdate::distributed) return sums;
  for (std::size_t i = 0; i < stage.specs.size(); ++i) {
    const TensorSpec& spec = stage.specs[i];
    if (!is_owner(stage, static_cast<int>(i), input, dp_rank) || !is_sharded(spec, input)) continue;
    const auto cut = tensor_shard(spec, input.model, part.tp, part.tp_rank).cut;
    const std::int64_t side = cut == TensorShard::Cut::rows ? spec.cols : spec.rows;
    const std::int64_t products = find_matrix_kind(input.optimizer.kind)->newton_schulz(*input.optimizer.matrix);
    const std::int64_t moments =
        shard_sums(*input.optimizer.matrix, spec, local_shape(spec, input.model, part.tp, part.tp_rank));
    sums.push_back(
        {"products", 1 + (moments > 0 ? 1 : 0), 1 + moments, std::max<std::int64_t>(1, moments), sizeof(double)});
    sums.push_back({"products", products, products * side * side, side * side});
  }
  return sums;
}

std::vector<TensorSum> sums_of_gradients(const StagePlan& stage, const PlanInput& input, const ModelPart& part) {
  std::vector<TensorSum> sums;
  if (part.tp == 1) return sums;
  const std::int64_t times = reductions_of_step(input);
  for (const PartialRun& run : partial_runs(stage, gradient_buckets(stage, input.parallel), input))
    sums.push_back({.what = "partial gradients",
                    .count = times,
                    .elements = times * run.elements,
                    .largest = run.elements,
                    .same_heads = run.same_heads});
  return sums;
}

SumStaging sum_staging(const std::vector<TensorSum>& sums, const ModelPart& part) {
  SumStaging staging;
  const int holders = part.key_value_holders();
  const std::int64_t columns = part.config.hidden_size;  // of rows that are scattered
  for (const TensorSum& sum : sums) {
    const auto n = static_cast<std::size_t>(sum.largest);
    std::size_t arriving = 0;
    if (sum.same_heads)
      arriving = summed_from_others(n, holders, part.tp_rank % holders);
    else if (sum.scatters_rows)
      arriving = at(part.tp - 1) * static_cast<std::size_t>(part.own_rows(sum.largest / columns) * columns);
    else
      arriving = summed_from_others(n, part.tp, part.tp_rank);
    std::size_t& most = sum.same_heads ? staging.same_heads : staging.group;
    most = std::max(most, arriving * sum.width);
  }
  return staging;
}

SumStaging common_staging(const StagePlan& stage, const PlanInput& input, const ModelPart& part) {
  SumStaging staging = sum_staging(sums_of_passes(stage, input, part), part);
  staging.cover(sum_staging(sums_of_gradients(stage, input, part), part));
  return staging;
}

void add_sums(Traffic& traffic, const std::vector<TensorSum>& sums) {
  for (const TensorSum& sum : sums)
    traffic.add(sum.scatters_rows ? "reduce_scatter" : "all_reduce", "tp", sum.what, sum.count,
                sum.elements * static_cast<std::int64_t>(sum.width));
}

}  // namespace sestina
