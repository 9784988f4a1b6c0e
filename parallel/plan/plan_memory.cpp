#include "parallel/plan/plan_memory.hpp"

#include <algorithm>

#include "core/layout/model_part.hpp"
#include "parallel/plan/plan_cost.hpp"
#include "parallel/plan/tensor_shard.hpp"

namespace sestina {
namespace {

using TpUpdate = ParallelOptions::TpUpdate;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

bool shares_state(const ParallelOptions& parallel) {
  return parallel.tp > 1 && (parallel.tp_update == TpUpdate::distributed || parallel.tp_update == TpUpdate::blockwise);
}

// Matrices whose master weights (dp) and state (dp and home) a rank keeps.
void add_matrices(std::vector<RankMemory>& ranks, const StagePlan& stage, const std::vector<TensorSpec>& local,
                  const Options& options, const StorageWidth& width) {
  const int dp = options.parallel.dp, tp = options.parallel.tp;
  const bool shared = shares_state(options.parallel);
  ByShape<std::size_t> bytes_of_state = state_bytes(options.optimizer);
  for (std::size_t i = 0; i < stage.specs.size(); ++i) {
    if (stage.owner[i] == scalar_tensor) continue;
    const TensorSpec& kept = shared ? local[i] : stage.specs[i];
    const std::size_t state = bytes_of_state.of(kept);
    const std::size_t master = static_cast<std::size_t>(local[i].elements()) * width.accumulate;
    for (int rank = 0; rank < dp * tp; ++rank) {
      if (stage.owner[i] != every_rank && stage.owner[i] != rank / tp) continue;
      RankMemory& memory = ranks[at(rank)];
      if (!width.shared()) memory.size.master += master;
      memory.checkpoint += master;
      if (stage.home[i] != every_rank && stage.home[i] != rank % tp) continue;
      memory.size.optimizer += state;
      memory.checkpoint += state;
      memory.size.parameters += kept.elements();
    }
  }
}

// Rows of the tensors of the scalar optimizer.
void add_rows(std::vector<RankMemory>& ranks, const StagePlan& stage, const Options& options,
              const StorageWidth& width) {
  const int dp = options.parallel.dp, tp = options.parallel.tp;
  for (int rank = 0; rank < dp * tp; ++rank) {
    std::int64_t elements = 0;
    for (const BucketLayout& bucket : stage.scalar_buckets)
      elements += dp == 1 ? 0 : bucket.cut[at(rank / tp) + 1] - bucket.cut[at(rank / tp)];
    RankMemory& memory = ranks[at(rank)];
    if (dp == 1)  // all of them, without the gaps of a bucket
      for (const BucketLayout& bucket : stage.scalar_buckets)
        for (const int spec : bucket.specs)
          elements += local_shape(stage.specs[at(spec)], options.model, tp, rank % tp).elements();
    const std::size_t bytes = static_cast<std::size_t>(elements) * width.accumulate;
    memory.scalar_elements = elements;
    memory.size.parameters += elements;
    if (!width.shared()) memory.size.master += bytes;
    memory.size.optimizer += 2 * bytes;
    memory.checkpoint += 3 * bytes;
  }
}

}  // namespace

LocalBatch local_batch(const Options& options) {
  const int ranks = options.parallel.dp, sequences = options.train.global_batch;
  LocalBatch batch;
  batch.micro = options.train.micro_batch;
  // As require_trainable lowers it; sequences fewer than ranks cannot be trained on.
  while (batch.micro > 1 && (sequences % batch.micro != 0 || sequences / batch.micro < ranks)) --batch.micro;
  batch.count = std::max((sequences / batch.micro + ranks - 1) / ranks, 1);
  return batch;
}

std::vector<RankMemory> rank_memory(const Plan& plan, const Options& options) {
  const StorageWidth width = options.train.precision == TrainOptions::Precision::bf16 ? width_bf16 : width_fp32;
  const LocalBatch batch = local_batch(options);
  std::vector<RankMemory> all;
  for (int number = 0; number < plan.pp; ++number) {
    const StagePlan& stage = plan.stages[at(number)];
    const std::vector<TensorSpec> local = local_shapes(stage.specs, options.model, plan.tp, 0);
    const ModelPart whole = model_part(options.model, 1, 0);
    const int sequence = options.data.sequence_length;
    const auto part = [&](std::size_t bytes) { return (bytes + at(plan.tp) - 1) / at(plan.tp); };
    RankMemory common;
    common.size.gradients = arena_layout(local).elements * width.accumulate;
    (width.shared() ? common.size.master : common.size.weights) =
        width.shared() ? common.size.gradients : matrix_arena_layout(local).elements * width.compute;
    const std::size_t frozen = frozen_layout(local, width.compute, width.accumulate).elements;
    common.size.weights += frozen;
    common.size.activations =
        part(slot_bytes(whole, stage.layers, batch.micro, sequence, width, options.train.recompute)) *
        static_cast<std::size_t>(std::min<std::int64_t>(plan.pp - number, batch.count));
    common.size.workspace = part(scratch_bytes(whole, batch.micro, sequence, width));
    std::vector<RankMemory> ranks(at(plan.dp * plan.tp), common);
    add_matrices(ranks, stage, local, options, width);
    add_rows(ranks, stage, options, width);
    for (int rank = 0; rank < plan.tp; ++rank) ranks[at(rank)].checkpoint += frozen;
    all.insert(all.end(), ranks.begin(), ranks.end());
  }
  if (plan.ranks() == 1) {  // as the model allocates it, with the gaps of the arena: as many as the gradients
    RankMemory& only = all.front();
    only.size.master = only.size.gradients;
    only.checkpoint = only.size.master + only.size.optimizer +
                      frozen_layout(plan.stages.front().specs, width.compute, width.accumulate).elements;
  }
  return all;
}

}  // namespace sestina
