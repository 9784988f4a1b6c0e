#include "parallel/plan/plan_memory.hpp"

#include <algorithm>

#include "core/layout/block_store.hpp"
#include "core/layout/model_part.hpp"
#include "core/optimizer/kinds/routing.hpp"
#include "parallel/plan/pipeline_schedule.hpp"
#include "parallel/plan/plan_cost.hpp"
#include "parallel/plan/tensor_shard.hpp"

namespace sestina {
namespace {

using TpUpdate = ParallelOptions::TpUpdate;

bool shares_state(const ParallelOptions& parallel) {
  return parallel.tp > 1 && (parallel.tp_update == TpUpdate::distributed || parallel.tp_update == TpUpdate::blockwise);
}

// As MatrixSet asks for it, with a lane for each thread that the deck gives; or what the deck allows.
std::size_t paged_in_memory(const PagedBytes& largest, const Options& options) {
  const auto lanes = at(std::max(1, options.run.threads)),
             workers = at(std::max(1, options.optimizer.refresh_workers()));
  const std::size_t jobs = largest.refresh == 0 ? 0 : 2 * workers * (largest.update + largest.refresh);
  const RefreshOptions& refresh = options.optimizer.refresh;
  return std::max(3 * lanes * largest.update + jobs, static_cast<std::size_t>(refresh.host_bytes));
}

// Matrices whose master weights (dp) and state (dp and home) a rank keeps.
void add_matrices(std::vector<RankMemory>& ranks, const StagePlan& stage, const std::vector<TensorSpec>& local,
                  const Options& options, const StorageWidth& width) {
  const int dp = options.parallel.dp, tp = options.parallel.tp;
  const bool shared = shares_state(options.parallel);
  ByShape<std::size_t> bytes_of_state = state_bytes(options.optimizer);
  ByShape<PagedBytes> paged_of([&](const TensorSpec& spec) { return paged_bytes(spec, options.optimizer); });
  std::vector<PagedBytes> paged(ranks.size());
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
      const PagedBytes elsewhere = paged_of.of(kept);
      memory.size.optimizer += state - elsewhere.state;
      memory.nvme += elsewhere.store;
      memory.nvme_moved += elsewhere.moved;
      paged[at(rank)].update = std::max(paged[at(rank)].update, elsewhere.update);
      paged[at(rank)].refresh = std::max(paged[at(rank)].refresh, elsewhere.refresh);
      memory.checkpoint += state;
      memory.size.parameters += kept.elements();
    }
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].nvme > 0)
      ranks[rank].size.optimizer += std::min(ranks[rank].nvme, paged_in_memory(paged[rank], options)) +
                                    store_buffer_bytes(options.optimizer.refresh.queue_depth);
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

namespace {

// Copies of weights for passes that began under them, and the tensors between this stage and the next one.
// local: of the stage's tensors; boundary: bytes of one such tensor.
std::size_t stash_bytes(const PipelineSetting& pipe, const PipelineSchedule& schedule,
                        const std::vector<TensorSpec>& local, int number, const Options& options,
                        const StorageWidth& width, std::size_t boundary) {
  const bool stashed = options.parallel.stash == ParallelOptions::Stash::on;
  const int delay = update_delay(pipe, number),
            held = stashed ? delay : (schedule.ahead[at(number)] % pipe.micros != 0 ? 1 : 0);
  std::size_t copy = 0;
  for (const TensorSpec& spec : local)
    copy += static_cast<std::size_t>(spec.elements()) * (spec.is_vector() ? width.accumulate : width.compute);
  std::size_t bytes = at(held) * copy;
  if (number + 1 < pipe.stages)  // each with a place for evaluation
    bytes += boundary * at(schedule.activations[at(number)] + schedule.gradients[at(number)] + 2);
  const bool from_another = number > 0 && pipe.rank_of(number - 1) != pipe.rank_of(number);
  if (from_another)
    bytes += boundary * at(schedule.activations[at(number - 1)] + schedule.gradients[at(number - 1)] + 2);
  return bytes;
}

void add(RankMemory& sum, const RankMemory& other) {
  ModelSize& size = sum.size;
  size.parameters += other.size.parameters;
  size.weights += other.size.weights;
  size.master += other.size.master;
  size.gradients += other.size.gradients;
  size.optimizer += other.size.optimizer;
  size.activations += other.size.activations;
  size.workspace += other.size.workspace;
  size.stash += other.size.stash;
  sum.checkpoint += other.checkpoint;
  sum.scalar_elements += other.scalar_elements;
  sum.nvme += other.nvme;
  sum.nvme_moved += other.nvme_moved;
}

}  // namespace

std::vector<RankMemory> rank_memory(const Plan& plan, const Options& options, int pipeline_ranks) {
  const StorageWidth width = options.train.precision == TrainOptions::Precision::bf16 ? width_bf16 : width_fp32;
  const LocalBatch batch = local_batch(options);
  const PipelineSetting pipe =
      pipeline_setting(options.parallel, pipeline_ranks > 0 ? pipeline_ranks : plan.pp, static_cast<int>(batch.count));
  const PipelineSchedule schedule = make_schedule(pipe);
  const std::size_t in_stage = at(plan.dp * plan.tp);
  std::vector<RankMemory> all(in_stage * at(pipe.ranks));
  for (int number = 0; number < plan.pp; ++number) {
    const StagePlan& stage = plan.stages[at(number)];
    const std::vector<TensorSpec> local = local_shapes(stage.specs, options.model, plan.tp, 0);
    const ModelPart whole = model_part(options.model, 1, 0);
    const int sequence = options.data.sequence_length;
    const auto part = [&](std::size_t bytes) { return (bytes + at(plan.tp) - 1) / at(plan.tp); };
    const bool recomputes =
        options.parallel.stash == ParallelOptions::Stash::recompute && update_delay(pipe, number) > 0;
    RankMemory common;
    common.size.gradients = arena_layout(local).elements * width.accumulate;
    (width.shared() ? common.size.master : common.size.weights) =
        width.shared() ? common.size.gradients : matrix_arena_layout(local).elements * width.compute;
    const std::size_t frozen = frozen_layout(local, width.compute, width.accumulate).elements;
    common.size.weights += frozen;
    common.size.activations =
        part(slot_bytes(whole, stage.layers, batch.micro, sequence, width, options.train.recompute)) *
        at(recomputes ? 1 : schedule.slots[at(number)]);
    common.size.workspace = part(scratch_bytes(whole, batch.micro, sequence, width));
    common.size.stash = stash_bytes(
        pipe, schedule, local, number, options, width,
        part(at(batch.micro) * at(sequence) * static_cast<std::size_t>(options.model.hidden_size) * width.compute));
    std::vector<RankMemory> ranks(in_stage, common);
    add_matrices(ranks, stage, local, options, width);
    add_rows(ranks, stage, options, width);
    for (int rank = 0; rank < plan.tp; ++rank) ranks[at(rank)].checkpoint += frozen;
    for (std::size_t i = 0; i < in_stage; ++i) add(all[at(pipe.rank_of(number)) * in_stage + i], ranks[i]);
  }
  if (plan.ranks() == 1) {  // as the model allocates it, with the gaps of the arena: as many as the gradients
    RankMemory& only = all.front();
    std::size_t state = only.size.optimizer;
    if (only.nvme > 0) {  // a copy of all of it, wherever it lies
      const std::vector<TensorSpec>& specs = plan.stages.front().specs;
      state = optimizer_state_bytes(specs, options.optimizer, width.accumulate);
    }
    only.size.master = only.size.gradients;
    only.checkpoint =
        only.size.master + state + frozen_layout(plan.stages.front().specs, width.compute, width.accumulate).elements;
  }
  return all;
}

}  // namespace sestina
