#include "parallel/plan/plan_memory.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/layout/rank_layout.hpp"
#include "core/layout/rotation_record.hpp"
#include "core/layout/weight_form.hpp"
#include "core/memory/device_store.hpp"
#include "core/memory/state_field.hpp"
#include "core/model/pass_scratch.hpp"
#include "core/optimizer/base/paged_bytes.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/stream_scratch.hpp"
#include "core/optimizer/stream_share.hpp"
#include "parallel/plan/block_turns.hpp"
#include "parallel/plan/exchange_bytes.hpp"
#include "parallel/plan/expert_layout.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/plan/matrix_groups.hpp"
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
  bool beside_device() const { return on_device() || input.machine.memory || input.machine.host_bandwidth; }
};

// One stage as a tensor-parallel rank has it, and the data-parallel ranks that hold the same experts.
struct Shard {
  StagePlan stage;  // with its own buckets
  std::vector<TensorSpec> local;
  GradientBuckets buckets;
  BucketReduction reduction, expert_reduction;
  ModelPart part;
  StagePlace place;
  int tp_rank = 0;
};

std::size_t elements_of(const TensorSpec& spec) { return static_cast<std::size_t>(spec.elements()); }

// Bytes that tied embeddings take on the way between first and last stage, on each side.
std::size_t tie_bytes(const Planned& s, const Shard& shard) {
  const int last = s.pipe.stages - 1, number = shard.place.number;
  const bool once = s.pipe.rank_of(0) == s.pipe.rank_of(last);
  if (!s.input.model.tie_word_embeddings || last == 0 || !(number == 0 || (number == last && !once))) return 0;
  const TensorSpec& embedding = s.plan.stages[0].specs[0];
  return aligned_elements(elements_of(local_shape(embedding, s.input.model, s.plan.tp, shard.tp_rank))) *
         (at(s.schedule.tied_weights + 1) * s.width.compute + at(s.schedule.tied_gradients + 1) * s.width.accumulate);
}

// Returns the bytes of copies of trained weights for passes that began under them, and of the tensors between this
// stage and the next one, each with a place for evaluation.
std::size_t stash_bytes(const Planned& s, const Shard& shard) {
  const int number = shard.place.number;
  const ArenaLayout matrices = matrix_arena_layout(shard.local);
  std::size_t vectors = 0, sums = 0;
  for (const TensorSpec& spec : shard.local) {
    if (!spec.trainable) continue;
    if (spec.is_vector()) vectors = (spec.follows ? vectors : aligned_elements(vectors)) + elements_of(spec);
    sums += aligned_elements(elements_of(spec)) * s.width.accumulate;
  }
  const std::size_t copy =
      aligned_elements(matrices.elements) * s.width.compute + aligned_elements(vectors) * s.width.accumulate;
  const std::size_t rows =
      static_cast<std::size_t>(shard.part.own_rows(std::int64_t{s.micro_batch} * s.input.sequence_length));
  const std::size_t boundary =
      aligned_elements(rows * static_cast<std::size_t>(s.input.model.hidden_size)) * s.width.compute;
  const auto link = [&](int from) {
    return boundary * at(s.schedule.activations[at(from)] + s.schedule.gradients[at(from)] + 2);
  };
  std::size_t bytes = at(shard.place.versions()) * copy + (shard.place.estimates() ? copy + sums : 0);
  if (number + 1 < s.pipe.stages) bytes += link(number);
  if (number > 0 && s.pipe.rank_of(number - 1) != s.pipe.rank_of(number)) bytes += link(number - 1);
  return bytes + tie_bytes(s, shard);
}

// Counts what is the same for all data-parallel ranks.
ModelSize common_size(const Planned& s, const Shard& shard) {
  const int sequence = s.input.sequence_length;
  const LayerRange layers = shard.stage.layers;
  ModelSize size;
  if (weights_in_turn(s.input.parallel)) {  // the places; what a rank keeps comes in addition
    const WeightTurns turns = weight_turns(shard.stage, shard.local);
    size.weights = static_cast<std::size_t>(turns.matrices) * s.width.compute +
                   static_cast<std::size_t>(turns.vectors) * s.width.accumulate;
  } else if (!s.width.shared()) {
    size.weights = matrix_arena_layout(shard.local).elements * s.width.compute;
  }
  size.weights += frozen_layout(shard.local, s.width.compute, s.width.accumulate).elements;
  const std::size_t slot = slot_bytes(shard.part, layers, s.micro_batch, sequence, s.width, s.input.train.recompute) +
                           (shard.place.split ? split_bytes(shard.part, layers, s.micro_batch, sequence, s.width) : 0);
  size.activations = slot * at(shard.place.recomputes() ? 1 : shard.place.slots);
  if (compares_gradients(s.input, s.pipe, s.schedule) && shard.place.ahead > 0) size.activations += slot;
  size.workspace = workspace_bytes(shard.part, s.micro_batch, sequence, s.width, s.threads) +
                   rope_table_bytes(s.input.model, sequence, s.width);
  size.stash = stash_bytes(s, shard);
  return size;
}

// Scratch of a matrix on its stream, found once for each shape.
class PartScratch {
 public:
  explicit PartScratch(const OptimizerOptions& optimizer) : optimizer_(optimizer) {}
  std::size_t of(const MatrixPart& part) {
    const auto [place, is_new] = known_.try_emplace({part.rows, part.cols, part.is_copied()}, 0);
    if (is_new) place->second = host_scratch(*optimizer_.matrix, part);
    return place->second;
  }

 private:
  const OptimizerOptions& optimizer_;
  std::map<std::tuple<std::int64_t, std::int64_t, bool>, std::size_t> known_;
};

// Streams and shards of the matrices that a rank updates.
class UpdateScratch {
 public:
  UpdateScratch(const Planned& s, PartScratch& known) : options_(s), known_(known) {}

  void add(const TensorSpec& kept) {
    for (const MatrixPart& part : matrix_parts(kept, options_.input.optimizer)) {
      cost_.push_back(stream_cost(static_cast<std::size_t>(part.rows), static_cast<std::size_t>(part.cols)));
      bytes_.push_back(known_.of(part));
    }
  }
  void add_shard(const TensorSpec& whole, const TensorSpec& local) {
    shard_ =
        std::max(shard_, host_shard_scratch(*options_.input.optimizer.matrix, whole, local, !options_.width.shared()));
  }
  int streams() const { return cost_.empty() ? 1 : stream_count(cost_, std::max(1, options_.threads)); }
  std::size_t total(int streams) const {
    const std::vector<int> stream = balance(cost_, streams);
    std::vector<std::size_t> largest(at(streams));
    for (std::size_t i = 0; i < stream.size(); ++i)
      largest[at(stream[i])] = std::max(largest[at(stream[i])], bytes_[i]);
    std::size_t sum = shard_;
    for (const std::size_t bytes : largest) sum += bytes;
    return sum;
  }

 private:
  const Planned& options_;
  PartScratch& known_;
  std::vector<double> cost_;
  std::vector<std::size_t> bytes_;
  std::size_t shard_ = 0;
};

// The bytes of matrices, found once for each shape.
struct MatrixBytes {
  ByShape<std::size_t> state;
  PartScratch scratch;
  ByShape<PagedBytes> paged;
  ByShape<RefreshNeeds> jobs;
};

// Memory of the measures of a stage's updates on a rank (core/update_meter.hpp).
class MeterMemory {
 public:
  explicit MeterMemory(const Planned& s) : input_(s.input), width_(s.width.accumulate) {}

  // elements: those that the rank updates.
  void add(std::size_t elements) {
    if (input_.updates_every == 0) return;
    copies_ += elements * width_;
    sums_ += 2 * sizeof(double);
    scratch_ = std::max(scratch_, host_meter_scratch(elements, 0, 0));
  }
  // kept: what the rank updates of a matrix.
  void add_matrix(const TensorSpec& kept) {
    if (input_.updates_every == 0) return;
    for (const MatrixPart& part : matrix_parts(kept, input_.optimizer))
      add_gram(static_cast<std::size_t>(std::min(part.rows, part.cols)),
               part.skew ? static_cast<std::size_t>(part.rows) : 0);
  }
  void add_shard(const TensorSpec& whole, const TensorSpec& local) {
    if (input_.updates_every > 0)
      add_gram(static_cast<std::size_t>(local.cols == whole.cols ? local.cols : local.rows), 0);
  }
  std::size_t total() const { return copies_ + sums_ + scratch_; }

 private:
  void add_gram(std::size_t side, std::size_t skew_block) {
    sums_ += 2 * sizeof(double);
    scratch_ = std::max(scratch_, host_meter_scratch(0, side, skew_block));
  }
  const PlanInput& input_;
  std::size_t width_, copies_ = 0, sums_ = 0, scratch_ = 0;
};

// Bytes of all parts of a matrix whose refreshes are jobs.
RefreshNeeds job_needs(const TensorSpec& spec, const OptimizerOptions& optimizer) {
  if (optimizer.refresh_workers() == 0) return {};
  RefreshNeeds sum;
  for (const MatrixPart& part : matrix_parts(spec, optimizer)) {
    const RefreshNeeds needs =
        refresh_needs(*optimizer.matrix, static_cast<std::size_t>(part.rows), static_cast<std::size_t>(part.cols));
    sum.scratch = std::max(sum.scratch, needs.scratch);
    sum.results += needs.results;
    sum.orders += needs.orders;
    sum.copies += needs.copies;
  }
  return sum;
}

MatrixBytes matrix_bytes(const OptimizerOptions& optimizer, MemorySpace memory) {
  return {state_bytes(optimizer), PartScratch(optimizer),
          ByShape<PagedBytes>(
              [&optimizer, memory](const TensorSpec& spec) { return paged_bytes(spec, optimizer, memory); }),
          ByShape<RefreshNeeds>([&optimizer](const TensorSpec& spec) { return job_needs(spec, optimizer); })};
}

// Bytes that streams and workers take, or what the deck allows.
std::size_t paged_in_memory(const PagedBytes& largest, int streams, const OptimizerOptions& optimizer, bool on_device) {
  const PagedAtWork work = on_device
                               ? paged_on_device(largest.update, largest.refresh)
                               : paged_at_work(largest.update, largest.refresh, streams, optimizer.refresh_workers());
  const RefreshOptions& refresh = optimizer.refresh;
  return std::max(std::max(work.updates, pieces_at_work(largest.piece)) + work.jobs,
                  static_cast<std::size_t>(on_device ? refresh.device_bytes : refresh.host_bytes));
}

// Counts state of a rank that lies in a tier between their uses: what is in memory of it, and the store's
// own buffers.
void add_tiers(const Planned& s, const PagedBytes& paged, int streams, RankMemory& memory) {
  if (paged.nvme + paged.host == 0) return;
  const OptimizerOptions& optimizer = s.input.optimizer;
  const bool on_nvme = paged.nvme > 0, through_host = s.on_device() && on_nvme;
  memory.nvme += paged.nvme;
  memory.streamed += paged.on_disk;
  memory.nvme_moved += paged.nvme_moved;
  memory.link_moved += paged.link_moved;
  memory.outside_tiers += paged.resident;
  memory.size.optimizer -= paged.state + paged.results;
  memory.size.optimizer += std::min(paged.places, paged_in_memory(paged, streams, optimizer, s.on_device()));
  const std::size_t buffers = (on_nvme ? store_buffer_bytes(optimizer.refresh.queue_depth) : 0) +
                              (through_host ? DeviceStore::buffers * paged.largest : 0);
  memory.host_tier += paged.host;
  (s.on_device() ? memory.host_tier : memory.size.optimizer) += buffers;
}

// Counts what a rank keeps of the tensors of a stage: master weights, as the arena holds them and for matrices whose
// home it is, and optimizer state.
void add_tensors(const Planned& s, const Shard& shard, int dp_rank, MatrixBytes& known, RankMemory& memory) {
  const PlanInput& o = s.input;
  const bool lone = s.plan.dp * s.plan.tp == 1;
  UpdateScratch scratch(s, known.scratch);
  MeterMemory meter(s);
  const bool in_turn = weights_in_turn(o.parallel);
  std::size_t arena = 0, copies = 0;  // elements of masters; where weights take turns, of what stays in their own type
  PagedBytes paged;
  std::size_t job = 0;
  const double often = o.optimizer.matrix ? refreshes_per_update(shard.stage, o.optimizer) : 0;
  const bool means = o.train.ema_tau > 0, looks_ahead = o.train.lookahead.factor > 0;
  const std::size_t saved_of_weight = (means ? 1 : 0) + (looks_ahead ? 1 : 0), kept_of_weight = looks_ahead ? 1 : 0;
  const auto add_state = [&](std::size_t bytes, std::int64_t elements, std::size_t master) {
    const std::size_t weights = master * s.width.accumulate, state = bytes + saved_of_weight * weights;
    memory.size.optimizer += state + kept_of_weight * weights;
    memory.size.parameters += elements;
    memory.saved += state + weights;
  };
  const auto shard_state = [&](const TensorSpec& matrix, const TensorSpec& part) {
    return static_cast<std::size_t>(part.elements() + shard_moments(*o.optimizer.matrix, matrix, part)) * sizeof(float);
  };
  // Counts a matrix that an object of the kind updates; away: not where it is computed with.
  const auto add_updated = [&](const TensorSpec& kept, bool away) {
    add_state(known.state.of(kept), kept.elements(), kept.has_master() ? elements_of(kept) : 0);
    if (kept.is_coded()) memory.saved += bytes_apart(kept, s.width.compute, s.width.accumulate);
    scratch.add(kept);
    meter.add(elements_of(kept));
    meter.add_matrix(kept);
    const RefreshNeeds jobs = known.jobs.of(kept);
    if (s.on_device())
      memory.workers += jobs.results + jobs.orders + jobs.copies;
    else
      memory.size.optimizer += jobs.results + jobs.orders;
    if (s.beside_device())
      memory.refresh_moved += static_cast<double>(jobs.results + jobs.orders + jobs.copies) * often;
    job = std::max(job, jobs.scratch);
    paged.add(known.paged.of(kept));
    if (away) memory.size.master += elements_of(kept) * s.width.accumulate;
  };
  for (std::size_t i = 0; i < shard.local.size(); ++i) {
    const TensorSpec &whole = shard.stage.specs[i], &local = shard.local[i];
    const int spec = static_cast<int>(i);
    if (!local.follows) {
      arena = aligned_elements(arena);
      copies = aligned_elements(copies);
    }
    if (!local.trainable) continue;
    const OwnedRows rows =
        lone ? OwnedRows{0, local.rows} : owned_rows(shard.stage, shard.buckets, spec, local, dp_rank);
    const auto owned = static_cast<std::size_t>((rows.end - rows.begin) * local.cols);
    const bool homed = is_homed(shard.stage, spec, o.parallel);
    const bool whole_here = (s.width.shared() || local.is_vector()) && !in_turn;
    if (local.has_master()) arena += whole_here ? elements_of(local) : homed ? 0 : owned;
    if (in_turn && !local.is_vector() && (homed || !s.width.shared())) copies += owned;
    if (owned == 0) continue;
    if (!shard.stage.is_matrix(spec)) {
      const std::size_t state = adamw_bytes(whole, rows.end - rows.begin, local.cols, o.optimizer, s.width.accumulate);
      add_state(state, static_cast<std::int64_t>(owned), owned);
      meter.add(owned);
      memory.scalar_elements += static_cast<std::int64_t>(owned);
      memory.scalar_state += state;
      paged.add(paged_bytes(whole, rows.end - rows.begin, local.cols, o.optimizer, s.width.accumulate,
                            s.on_device() ? MemorySpace::device : MemorySpace::host));
    } else if (is_sharded(whole, o)) {
      add_state(shard_state(whole, local), local.elements(), owned);
      scratch.add_shard(whole, local);
      meter.add(owned);
      meter.add_shard(whole, local);
    } else if (!homed || is_home(shard.stage, spec, shard.tp_rank)) {
      add_updated(homed ? whole : local, homed);
    }
  }
  for (const MatrixShare& share : shard.stage.shares) {
    if (share.rank != dp_rank * s.plan.tp + shard.tp_rank) continue;
    const TensorSpec& matrix = shard.stage.specs[at(share.spec)];
    const TensorSpec kept = share_shape(share);
    if (share.ranks == 1) {
      add_updated(is_whole(share, matrix) ? matrix : kept, true);
      continue;
    }
    add_state(shard_state(matrix, kept), kept.elements(), elements_of(kept));
    memory.size.master += elements_of(kept) * s.width.accumulate;
    scratch.add_shard(matrix, kept);
    meter.add(elements_of(kept));
  }
  memory.size.master += aligned_elements(arena) * s.width.accumulate;
  memory.size.weights += copies * s.width.compute;
  const int streams = scratch.streams();
  memory.size.workspace += scratch.total(streams) + meter.total();
  (s.on_device() ? memory.workers : memory.size.workspace) += at(o.optimizer.refresh_workers()) * job;
  add_tiers(s, paged, streams, memory);
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

// One data-parallel rank's share of a stage.
RankMemory stage_memory(const Planned& s, const Shard& shard, const ModelSize& common, int dp_rank,
                        MatrixBytes& known) {
  const PlanInput& o = s.input;
  RankMemory memory;
  memory.size = common;
  add_tensors(s, shard, dp_rank, known, memory);
  const std::size_t whole = s.plan.dp * s.plan.tp == 1 ? arena_layout(shard.local).elements
                                                       : static_cast<std::size_t>(shard.buckets.begin.back());
  const std::size_t gradients =
      shard.buckets.in_turn() ? static_cast<std::size_t>(shard.buckets.sums_size(dp_rank)) : whole;
  const int count = batch_share(o, dp_rank).count;
  const int buffers = 1 + (o.deterministic && count > 1 ? tree_levels(count) : 0);
  const bool kept = compares_gradients(o, s.pipe, s.schedule);  // those at the newest weights
  memory.size.gradients = at(buffers + (kept ? 1 : 0)) * gradients * s.width.accumulate;
  if (shard.buckets.in_turn()) memory.size.gradients += whole * s.width.accumulate;  // the places of blocks
  if (gathers_sums(o.deterministic, count, shard.buckets.in_turn()))
    memory.size.gradients += size_of_sums(o.model.linear, shard.local) * s.width.accumulate;
  memory.size.exchanges = shard.reduction.bytes(dp_rank) + shard.expert_reduction.bytes(dp_rank / o.parallel.ep) +
                          home_slot_bytes(shard.stage, o.parallel, dp_rank, shard.tp_rank, s.width) +
                          memory_of_shares(shard.stage, o, dp_rank * s.plan.tp + shard.tp_rank, s.width);
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
    return bucket_reduction(buckets_of(shard.buckets, shard.stage, experts).buckets, levels, s.on_device());
  };
  shard.reduction = reduction(false, s.levels);
  shard.expert_reduction = reduction(true, even_nodes(expert_holders(parallel), expert_holders(parallel)));
  shard.local = local_shapes(shard.stage.specs, s.input.model, s.plan.tp, tp_rank);
  drop_other_experts(shard.local, s.input, dp_rank);
  shard.part = model_part(s.input.model, s.plan.tp, tp_rank, parallel.sequence_parallel);
  set_experts(shard.part, parallel, dp_rank);
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
  const Planned s{plan,
                  input,
                  input.train.precision == TrainOptions::Precision::bf16 ? width_bf16 : width_fp32,
                  micro_batch,
                  threads,
                  plan.pipe,
                  plan.schedule,
                  bulk_levels(planned_levels(input.parallel))};
  MatrixBytes known = matrix_bytes(input.optimizer, s.on_device() ? MemorySpace::device : MemorySpace::host);
  const std::size_t in_stage = at(plan.dp * plan.tp);
  std::vector<RankMemory> all(in_stage * at(plan.pipe.ranks));
  std::vector<SumStaging> staging(all.size());  // one for all stages of a rank, as are its tokens
  std::vector<bool> seen(all.size());
  const std::size_t tokens = 3 * at(micro_batch) * at(input.sequence_length) * sizeof(std::int32_t);
  const int places = input.parallel.ep, parts = plan.tp * places;  // places: of experts
  for (int number = 0; number < plan.pp; ++number)
    for (int part = 0; part < parts; ++part) {
      const int tp_rank = part / places;
      const Shard shard = shard_of(s, number, tp_rank, part % places);
      const ModelSize common = common_size(s, shard);
      const SumStaging sums = sum_staging_bytes(shard.stage, input, shard.part, micro_batch, s.width);
      for (int dp_rank = part % places; dp_rank < plan.dp; dp_rank += places) {
        const std::size_t rank = at(plan.pipe.rank_of(number)) * in_stage + at(dp_rank * plan.tp + tp_rank);
        add(all[rank], stage_memory(s, shard, common, dp_rank, known));
        staging[rank] = {std::max(staging[rank].group, sums.group),
                         std::max(staging[rank].same_heads, sums.same_heads)};
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
