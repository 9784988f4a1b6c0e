#include "parallel/exchange/rank_memory.hpp"

#include <algorithm>

#include "core/layout/rank_layout.hpp"
#include "core/layout/rotation_record.hpp"
#include "core/layout/weight_form.hpp"
#include "core/memory/state_field.hpp"
#include "core/model/pass_scratch.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/stream_scratch.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/exchange/pipeline_exchange.hpp"
#include "parallel/exchange/tensor_sums.hpp"
#include "parallel/exchange/update_exchange.hpp"
#include "parallel/exchange/update_memory.hpp"
#include "parallel/plan/expert_layout.hpp"
#include "parallel/plan/pipeline_schedule.hpp"
#include "parallel/plan/plan_cost.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

// The inputs that all ranks have in common.
struct Planned {
  const Plan& plan;
  const PlanInput& input;
  StorageWidth width;
  int micro_batch = 1, threads = 1;
  const PipelineOptions& pipe;
  const PipelineSchedule& schedule;
  NodeLevels levels;
  bool on_device() const { return threads == 0; }
};

// One stage as a tensor-parallel rank has it, and the data-parallel ranks that hold the same experts.
struct Shard {
  StagePlan stage;                // with its own buckets
  RankLayout layout;              // of the data-parallel rank that is looked at
  std::vector<TensorSpec> local;  // those of the layout
  GradientBuckets buckets;
  BucketReduction reduction, expert_reduction;
  ModelPart part;
  SumStaging staging;
  StagePlace place;
  int tp_rank = 0;
};

// Returns the bytes of copies of trained weights for passes that began under them, and of the channels to other stages.
std::size_t stash_bytes(const Planned& s, const Shard& shard) {
  const ArenaLayout matrices = matrix_arena_layout(shard.local);
  std::size_t vectors = 0, sums = 0;
  for (const TensorSpec& spec : shard.local) {
    if (!spec.trainable) continue;
    const auto elements = static_cast<std::size_t>(spec.elements());
    if (spec.is_vector()) vectors = (spec.follows ? vectors : aligned_elements(vectors)) + elements;
    sums += aligned_elements(elements) * s.width.accumulate;
  }
  const std::size_t copy =
      aligned_elements(matrices.elements) * s.width.compute + aligned_elements(vectors) * s.width.accumulate;
  return at(shard.place.versions()) * copy + (shard.place.estimates() ? copy + sums : 0) +
         memory_of_channels(s.plan, shard.part, shard.place.number);
}

// Counts what is the same for all data-parallel ranks.
ModelSize common_size(const Planned& s, const Shard& shard) {
  const int sequence = s.input.sequence_length;
  const LayerRange layers = shard.stage.layers;
  ModelSize size;
  const std::size_t slot = slot_bytes(shard.part, layers, s.micro_batch, sequence, s.width, s.input.train.recompute) +
                           (shard.place.split ? split_bytes(shard.part, layers, s.micro_batch, sequence, s.width) : 0);
  size.activations = slot * at(shard.place.recomputes() ? 1 : shard.place.slots);
  if (compares_gradients(s.input, s.pipe, s.schedule) && shard.place.ahead > 0) size.activations += slot;
  size.workspace = workspace_bytes(shard.part, s.micro_batch, sequence, s.width, s.threads) +
                   rope_table_bytes(s.input.model, sequence, s.width);
  size.stash = stash_bytes(s, shard);
  return size;
}

// Returns the bytes of the scratch in which the rotations of a stage are looked at.
std::size_t rotation_scratch(const Planned& s, const Shard& shard) {
  std::size_t most = 0;
  const RotationLook look = s.input.rotations_every > 0 ? RotationLook::all : RotationLook::norm;
  if (look == RotationLook::norm && s.input.model.linear.merge_bound == 0) return most;
  for (const TensorSpec& spec : shard.local)
    if (spec.part == 0)
      most = std::max(
          most, host_rotation_scratch(shard.part.config.linear,
                                      {0, static_cast<std::size_t>(spec.rows), static_cast<std::size_t>(spec.cols),
                                       s.width.compute, s.width.accumulate},
                                      spec.cut, look));
  return most;
}

// Counts the buffers of gradients: whole ones of a step and of the tree of its micro-batches, or, where they take
// turns, places of blocks and such buffers of what the rank owns.
std::size_t gradient_memory(const Planned& s, const Shard& shard, const RankLayout& layout, int dp_rank) {
  const bool in_turn = layout.gradients_in_turn;
  const int count = batch_share(s.input, dp_rank).count;
  const bool kept = compares_gradients(s.input, s.pipe, s.schedule);  // those at the newest weights
  const std::size_t buffers = at(1 + (s.input.deterministic && count > 1 ? tree_levels(count) : 0) + (kept ? 1 : 0));
  const auto places = in_turn ? static_cast<std::size_t>(shard.buckets.begin.back()) : 0;
  std::size_t elements = places + buffers * (layout.gradient_elements - places);
  if (gathers_sums(s.input.deterministic, count, in_turn)) elements += size_of_sums(s.input.model.linear, shard.local);
  return elements * s.width.accumulate;
}

// One data-parallel rank's share of a stage.
RankMemory stage_memory(const Planned& s, Shard& shard, const ModelSize& common, int dp_rank, UpdateMemory& updates) {
  const PlanInput& o = s.input;
  const RankLayout& layout = shard.layout;
  own_rows(shard.layout, shard.stage, shard.buckets, o, dp_rank);
  const ArenaPlaces arena = arena_places(layout, s.width.compute, s.width.accumulate);
  RankMemory memory;
  memory.size = common;
  memory.size.weights = (layout.matrix_elements + arena.matrices.elements) * s.width.compute +
                        layout.vector_elements * s.width.accumulate + arena.frozen.elements;
  memory.size.master = arena.values.elements * s.width.accumulate;
  memory.size.gradients = gradient_memory(s, shard, layout, dp_rank);
  updates.add(updated_tensors(shard.stage, layout, o, dp_rank, shard.tp_rank), shard.stage, memory);
  memory.size.exchanges = shard.reduction.bytes(dp_rank) + shard.expert_reduction.bytes(dp_rank / o.parallel.ep) +
                          memory_of_places(home_places(shard.stage, o, dp_rank, shard.tp_rank), s.width) +
                          memory_of_shares(shard.stage, o, dp_rank * s.plan.tp + shard.tp_rank);
  memory.size.workspace += rotation_scratch(s, shard);
  if (replicas_drift(o.parallel, o.optimizer)) {  // in host memory
    const int replica = replica_rank(o.parallel, dp_rank, shard.tp_rank);
    (s.on_device() ? memory.workers : memory.size.exchanges) +=
        coherence_staging_elements(replica_levels(o.parallel), replica) * sizeof(float);
  }
  if (dp_rank > 0) return memory;
  for (const TensorSpec& spec : shard.local)
    if (!spec.trainable) memory.saved += bytes_apart(spec, s.width.compute, s.width.accumulate);
  return memory;
}

// dp_rank: the first one with these experts.
Shard shard_of(const Planned& s, int number, int tp_rank, int dp_rank) {
  const ParallelOptions& parallel = s.input.parallel;
  Shard shard;
  shard.tp_rank = tp_rank;
  shard.stage = s.plan.stages[at(number)];
  lay_out_buckets(shard.stage, s.input, tp_rank, dp_rank);
  shard.buckets = gradient_buckets(shard.stage, parallel);
  const auto reduction = [&](bool experts, const NodeLevels& levels) {
    return bucket_reduction(buckets_of(shard.buckets, experts).buckets, levels, s.on_device());
  };
  shard.reduction = reduction(false, s.levels);
  shard.expert_reduction = reduction(true, even_nodes(expert_holders(parallel), expert_holders(parallel)));
  shard.layout = shards_of_rank(shard.stage, s.input, dp_rank, tp_rank);
  for (const TensorHolding& tensor : shard.layout.tensors) shard.local.push_back(tensor.local);
  shard.part = part_of_rank(s.input, tp_rank);
  set_experts(shard.part, parallel, dp_rank);
  shard.staging = common_staging(shard.stage, s.input, shard.part);
  shard.place = stage_place(s.pipe, s.schedule, parallel, updates_between_merges(s.input.model.linear), number);
  return shard;
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
  size.exchanges += other.size.exchanges;
  sum.saved += other.saved;
  sum.streamed += other.streamed;
  sum.scalar_elements += other.scalar_elements;
  sum.scalar_state += other.scalar_state;
  sum.outside_tiers += other.outside_tiers;
  sum.nvme += other.nvme;
  sum.nvme_moved += other.nvme_moved;
  sum.host_tier += other.host_tier;
  sum.link_moved += other.link_moved;
  sum.refresh_moved += other.refresh_moved;
  sum.workers += other.workers;
}

std::size_t save_bytes(const RankMemory& memory, bool copies) {
  const std::size_t streamed = copies ? memory.streamed : memory.saved;
  return memory.saved - streamed + (streamed > 0 ? field_stream_bytes : 0);
}

}  // namespace

std::vector<RankMemory> rank_memory(const Plan& plan, int threads, bool copies) {
  const PlanInput& input = plan.input;
  const int micro_batch = largest_share(input).micro_batch;
  const Planned s{plan,    input,     width_of(input), micro_batch,
                  threads, plan.pipe, plan.schedule,   bulk_levels(planned_levels(input.parallel))};
  UpdateMemory updates(input, threads);
  const std::size_t in_stage = at(plan.dp * plan.tp);
  std::vector<RankMemory> all(in_stage * at(plan.pipe.ranks));
  std::vector<SumStaging> staging(all.size());  // one for all stages of a rank, as are its tokens
  std::vector<bool> seen(all.size());
  const std::size_t tokens = 3 * at(micro_batch) * at(input.sequence_length) * sizeof(std::int32_t);
  const int places = input.parallel.ep, parts = plan.tp * places;  // places: of experts
  for (int number = 0; number < plan.pp; ++number)
    for (int part = 0; part < parts; ++part) {
      const int tp_rank = part / places;
      Shard shard = shard_of(s, number, tp_rank, part % places);
      const ModelSize common = common_size(s, shard);
      for (int dp_rank = part % places; dp_rank < plan.dp; dp_rank += places) {
        const std::size_t rank = at(plan.pipe.rank_of(number)) * in_stage + at(dp_rank * plan.tp + tp_rank);
        add(all[rank], stage_memory(s, shard, common, dp_rank, updates));
        staging[rank].cover(shard.staging);
        staging[rank].cover(sum_staging(sums_of_updates(shard.stage, input, shard.part, dp_rank), shard.part));
        if (!seen[rank]) all[rank].size.activations += tokens * at(shard.place.slots + 1);  // one for evaluation
        seen[rank] = true;
      }
    }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    all[rank].size.exchanges += staging[rank].group + staging[rank].same_heads;
    all[rank].checkpoint = save_bytes(all[rank], copies);
  }
  return all;
}

}  // namespace sestina
