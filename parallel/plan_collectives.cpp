#include "parallel/plan_collectives.hpp"

#include <algorithm>
#include <string_view>

#include "core/optimizer/muon_rule.hpp"
#include "parallel/plan_memory.hpp"
#include "parallel/shard_layout.hpp"
#include "parallel/tensor_shard.hpp"

namespace sestina {
namespace {

using TpUpdate = ParallelOptions::TpUpdate;

constexpr std::int64_t f32 = 4;

std::int64_t compute_bytes(const Options& options) {
  return options.train.precision == TrainOptions::Precision::bf16 ? 2 : f32;
}

// Keeps, of each kind, what the busiest stage does.
class Tally {
 public:
  void add(std::string operation, std::string group, std::string what, std::int64_t count, std::int64_t bytes) {
    if (count == 0) return;
    for (Collective& known : stage_)
      if (known.operation == operation && known.what == what) {
        known.count += count;
        known.bytes += bytes;
        return;
      }
    stage_.push_back({std::move(operation), std::move(group), std::move(what), count, bytes});
  }
  void end_stage() {
    for (Collective& done : stage_) {
      const auto known = std::find_if(all_.begin(), all_.end(), [&](const Collective& other) {
        return other.operation == done.operation && other.what == done.what;
      });
      if (known == all_.end()) {
        all_.push_back(done);
      } else {
        known->count = std::max(known->count, done.count);
        known->bytes = std::max(known->bytes, done.bytes);
      }
    }
    stage_.clear();
  }
  std::vector<Collective> take() { return std::move(all_); }

 private:
  std::vector<Collective> stage_, all_;
};

// Gradients to their owners, weights back, bucket by bucket.
void data_parallel(Tally& tally, const StagePlan& stage, const Options& options) {
  if (options.parallel.dp == 1) return;
  for (const auto* buckets : {&stage.buckets, &stage.scalar_buckets})
    for (const BucketLayout& bucket : *buckets) {
      const bool owned = !bucket.cut.empty();
      tally.add(owned ? "reduce_scatter" : "all_reduce", "dp", "gradients", 1, bucket.elements * f32);
      if (owned) tally.add("all_gather", "dp", "weights", 1, bucket.elements * compute_bytes(options));
    }
}

std::int64_t newton_schulz_iterations(const TensorSpec& spec, const Options& options) {
  const auto rows = static_cast<std::size_t>(spec.rows), cols = static_cast<std::size_t>(spec.cols);
  return static_cast<std::int64_t>(read_muon_rule(*options.optimizer.matrix, rows, cols).steps.size());
}

// Whole matrices for their update: to the hosts and back, or all to all, or products summed.
void tensor_parallel_update(Tally& tally, const StagePlan& stage, const Options& options) {
  if (options.parallel.tp == 1) return;
  std::int64_t groups = 0, group_bytes = 0;
  for (const auto& of_rank : stage.micro_groups) {
    std::int64_t bytes = 0;
    for (const MicroGroup& group : of_rank)
      for (const int spec : group.specs) bytes += stage.specs[static_cast<std::size_t>(spec)].elements() * f32;
    groups = std::max(groups, static_cast<std::int64_t>(of_rank.size()));
    group_bytes = std::max(group_bytes, bytes);
  }
  tally.add("all_to_all", "tp", "whole gradients", groups, group_bytes);
  tally.add("all_to_all", "tp", "updates", groups, group_bytes);
  if (options.parallel.tp_update != TpUpdate::duplicated && options.parallel.tp_update != TpUpdate::distributed) return;
  std::vector<std::int64_t> count(static_cast<std::size_t>(options.parallel.dp), 0), bytes = count;
  for (std::size_t i = 0; i < stage.specs.size(); ++i)
    for (std::size_t rank = 0; rank < count.size(); ++rank) {
      const TensorSpec& spec = stage.specs[i];
      if (stage.owner[i] != every_rank && stage.owner[i] != static_cast<int>(rank)) continue;
      if (options.parallel.tp_update == TpUpdate::duplicated) {
        count[rank] += 1;
        bytes[rank] += spec.elements() * f32;
      } else if (is_sharded(spec, options)) {  // the norm, then a Gram matrix of the whole side each time
        const auto cut = tensor_shard(spec, options.model, options.parallel.tp, 0).cut;
        const std::int64_t iterations = newton_schulz_iterations(spec, options);
        const std::int64_t side = cut == TensorShard::Cut::rows ? spec.cols : spec.rows;
        count[rank] += 1 + iterations;
        bytes[rank] += 2 * f32 + iterations * side * side * f32;
      }
    }
  const bool gather = options.parallel.tp_update == TpUpdate::duplicated;
  tally.add(gather ? "all_gather" : "all_reduce", "tp", gather ? "whole gradients" : "products",
            *std::max_element(count.begin(), count.end()), *std::max_element(bytes.begin(), bytes.end()));
}

// The model's own: with sequence parallelism, attention and MLP each gather their input and scatter their sum, forward;
// backward does both in mirror and gathers the input once more for the weight gradients.
void model_parallel(Tally& tally, const StagePlan& stage, const Options& options) {
  const LocalBatch batch = local_batch(options);
  const std::int64_t tokens = std::int64_t{batch.micro} * options.data.sequence_length, micros = batch.count;
  const std::int64_t stream = tokens * options.model.hidden_size * compute_bytes(options);
  if (options.parallel.tp > 1) {
    const std::int64_t again = options.train.recompute ? 1 : 0;
    const std::int64_t halves = 2 * (stage.layers.end - stage.layers.begin) * micros;
    const std::int64_t gathers = halves * (3 + again), scatters = halves * (2 + again);
    tally.add("all_gather", "tp", "activations", gathers, gathers * stream);
    tally.add("reduce_scatter", "tp", "activations", scatters, scatters * stream);
  }
  if (options.parallel.pp > 1) {
    const bool ends = stage.layers.begin == 0 || stage.layers.end == options.model.num_hidden_layers;
    const std::int64_t sends = micros * (ends ? 1 : 2);
    tally.add("send", "pp", "activations", sends, sends * stream / options.parallel.tp);
  }
}

}  // namespace

std::vector<Collective> collectives(const Plan& plan, const Options& options) {
  Tally tally;
  for (const StagePlan& stage : plan.stages) {
    data_parallel(tally, stage, options);
    tensor_parallel_update(tally, stage, options);
    model_parallel(tally, stage, options);
    // Loss and norm: one fp64 for each tensor and one more.
    if (plan.ranks() > 1)
      tally.add("all_reduce", "all", "loss and norm", 1, 8 * (static_cast<std::int64_t>(stage.specs.size()) + 1));
    tally.end_stage();
  }
  return tally.take();
}

double sent_bytes(const Collective& collective, const Plan& plan) {
  const int size = collective.group == "dp" ? plan.dp : collective.group == "tp" ? plan.tp : plan.ranks();
  const double part = static_cast<double>(size - 1) / size, bytes = static_cast<double>(collective.bytes);
  if (collective.operation == "send") return bytes;
  if (collective.operation == "all_to_all") return bytes * part / size;
  return collective.operation == "all_reduce" ? 2 * bytes * part : bytes * part;
}

}  // namespace sestina
