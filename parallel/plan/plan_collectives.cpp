#include "parallel/plan/plan_collectives.hpp"

#include <algorithm>
#include <string_view>

#include "core/layout/model_size.hpp"
#include "core/layout/rank_layout.hpp"
#include "core/optimizer/base/stream_scratch.hpp"
#include "parallel/plan/block_turns.hpp"
#include "parallel/plan/exchange_bytes.hpp"
#include "parallel/plan/expert_layout.hpp"
#include "parallel/plan/matrix_groups.hpp"
#include "parallel/plan/rank_report.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

using TpUpdate = ParallelOptions::TpUpdate;

std::int64_t compute_bytes(const PlanInput& input) {
  return input.train.precision == TrainOptions::Precision::bf16 ? 2 : f32_bytes;
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

// Sizes are those of tensor-parallel rank 0, whose shards are the largest.
TensorSpec largest_shard(const TensorSpec& spec, const PlanInput& input) {
  return local_shape(spec, input.model, input.parallel.tp, 0);
}

// Returns how often weights go out in a step: with train.lookahead once more, moved on (core/optimizer/lookahead.hpp).
int times_sent(const PlanInput& input) { return input.train.lookahead.factor > 0 ? 2 : 1; }

// Returns the bytes of a tensor's weights as they are computed with.
std::int64_t sent_weight(const TensorSpec& spec, const PlanInput& input) {
  const TensorSpec local = largest_shard(spec, input);
  return local.is_coded() ? local.rows * local.row_codes()
                          : local.elements() * (local.is_vector() ? f32_bytes : compute_bytes(input));
}

// Counts the weights that come block by block, as often as passes read a block that is not in its place.
void weights_by_block(Tally& tally, const Plan& plan, int number) {
  if (!weights_in_turn(plan.input.parallel)) return;
  const StagePlan& stage = plan.stages[at(number)];
  const std::vector<Action>& actions = plan.schedule.ranks[at(plan.pipe.rank_of(number))];
  const std::vector<std::int64_t> gathers = gathers_of_step(stage, actions, number);
  for (std::size_t block = 0; block < gathers.size(); ++block) {
    std::int64_t bytes = 0;
    for (const TensorSpec& spec : stage.specs)
      if (at(spec.block) == block) bytes += sent_weight(spec, plan.input);
    tally.add("all_gather", "dp", "weights", gathers[block], gathers[block] * bytes);
  }
}

// Returns how often gradients are summed over data-parallel ranks in a step.
std::int64_t reductions(const PlanInput& input) {
  return gradients_in_turn(input.parallel) ? largest_share(input).count : 1;
}

// Counts gradients to their owners and weights back, bucket by bucket; where nobody owns a bucket, sums go to all
// ranks. Weights travel without the gaps between them, as they are computed with: vectors in fp32.
// Holders of the same experts exchange those of these (parallel.ep).
void data_parallel(Tally& tally, const StagePlan& stage, const PlanInput& input) {
  if (input.parallel.dp == 1) return;
  const std::int64_t sums = reductions(input);
  for (const auto* buckets : {&stage.buckets, &stage.scalar_buckets})
    for (const BucketLayout& bucket : *buckets) {
      const bool experts = is_of_experts(stage, bucket, input.parallel.ep);
      if (experts && expert_holders(input.parallel) == 1) continue;
      const char* const group = experts ? "holders" : "dp";
      tally.add("reduce_scatter", group, experts ? "expert gradients" : "gradients", sums,
                sums * bucket.elements * f32_bytes);
      if (bucket.cut.empty()) {
        tally.add("all_gather", "dp", "gradients", 1, bucket.elements * f32_bytes);
        continue;
      }
      if (weights_in_turn(input.parallel)) continue;
      std::int64_t bytes = 0;
      for (const int number : bucket.specs) bytes += sent_weight(stage.specs[at(number)], input);
      const int sent = times_sent(input);
      tally.add("all_gather", group, experts ? "expert weights" : "weights", sent, sent * bytes);
    }
}

// Counts the rows of tokens that travel to their experts and back at the mean load, as core/model/experts.hpp has it,
// and the numbers of them that ranks tell each other first. Forward: inputs, outputs. Backward: gradients of outputs
// and of inputs, the weights of choices and their gradients, and inputs once more. A block that is recomputed sends its
// inputs again.
void expert_parallel(Tally& tally, const StagePlan& stage, const PlanInput& input) {
  const std::int64_t ep = input.parallel.ep;
  if (ep == 1) return;
  const BatchShare batch = largest_share(input);
  const std::int64_t tokens = std::int64_t{batch.micro_batch} * input.sequence_length;
  const std::int64_t layers = std::int64_t{batch.count} * (stage.layers.end - stage.layers.begin);
  const std::int64_t again = input.train.recompute ? 1 : 0, ways = 5 + again, forward = 1 + again;
  const std::int64_t rows = ep * tokens * input.model.num_experts_per_tok;
  tally.add("all_to_all", "experts", "tokens", ways * layers,
            ways * layers * rows * input.model.hidden_size * compute_bytes(input));
  tally.add("all_to_all", "experts", "choice weights", 2 * layers, 2 * layers * rows * f32_bytes);
  tally.add("all_to_all", "experts", "token counts", forward * layers,
            forward * layers * ep * input.model.num_experts * static_cast<std::int64_t>(sizeof(std::int64_t)));
}

// Counts the places for the squares of gradients (core/optimizer/gradient_norm.hpp): one for a tensor that has an
// owner, one for each chunk of a sharded tensor.
std::int64_t square_places(const StagePlan& stage, const PlanInput& input) {
  std::int64_t places = 0;
  for (int number = 0; number < static_cast<int>(stage.specs.size()); ++number) {
    const TensorSpec local = largest_shard(stage.specs[static_cast<std::size_t>(number)], input);
    const std::int64_t rows = chunk_rows(local);
    const bool whole = stage.is_matrix(number) || !local.trainable;
    places += whole ? 1 : (local.rows + rows - 1) / rows;
  }
  return places;
}

// Counts losses of all micro-batches and squares, in fp64; squares of each tensor's shards; with both, the flag of
// weights that are not finite; and what the trainer asks all ranks.
void loss_and_norm(Tally& tally, const Plan& plan, const StagePlan& stage) {
  constexpr std::int64_t f64 = 8;
  const PlanInput& input = plan.input;
  const ParallelOptions& parallel = input.parallel;
  const auto tensors = static_cast<std::int64_t>(stage.specs.size());
  const std::int64_t micros = largest_share(input).all;
  if (parallel.dp > 1)
    tally.add("all_reduce", "dp", "loss and norm", 1, f64 * (micros + square_places(stage, input) + 1));
  if (parallel.dp > 1 && input.model.has_experts())
    tally.add("all_reduce", "dp", "loads of experts", 1,
              f64 * (stage.layers.end - stage.layers.begin) * input.model.num_experts);
  if (parallel.tp > 1) tally.add("all_gather", "tp", "norm", 1, f64 * (tensors + 1) * parallel.tp);
  const ReportParts told = told_parts(parallel, input.optimizer, input.model);
  const auto bytes = [report = RankReport(parallel.pp)](const ReportParts& parts) {
    return static_cast<std::int64_t>(count_numbers(report, parts)) * f64;
  };
  if (input.optimizer.qk_clip > 0)
    tally.add("all_reduce", "all", "largest scores", 1,
              f64 * input.model.num_hidden_layers * input.model.num_attention_heads);
  if (parallel.is_async()) {  // nobody waits: a step's numbers travel while later ones are under way
    tally.add("all_gather", "all", "numbers of a step", 1, bytes(told) * parallel.ranks());
    return;
  }
  if (parallel.pp > 1) {
    std::int64_t all = 0;
    for (const StagePlan& other : plan.stages) all += static_cast<std::int64_t>(other.specs.size());
    tally.add("all_reduce", "pp", "loss and norm", 1, f64 * (micros + all + 1));
  }
  tally.add("all_reduce", "all", "votes", Votes::polls, Votes::polls * bytes({.votes = true}));
  if (told.replicas)
    tally.add("all_gather", "all", "drift of replicas", 1, bytes({.replicas = true}) * parallel.ranks());
  tally.add("all_gather", "all", "times", 1,
            bytes({.times = true, .scores = told.scores, .tiers = told.tiers, .loads = told.loads}) * parallel.ranks());
}

// Counts what updates of matrices send: whole matrices to the homes and back, or to all, or sums of products.
void tensor_parallel_update(Tally& tally, const StagePlan& stage, const PlanInput& input) {
  if (input.parallel.tp == 1) return;
  std::int64_t groups = 0, gradient_bytes = 0, update_bytes = 0;
  for (const auto& of_rank : stage.micro_groups) {
    std::int64_t gradients = 0, updates = 0;
    for (const MicroGroup& group : of_rank)
      for (const int number : group.specs) {
        const TensorSpec& spec = stage.specs[static_cast<std::size_t>(number)];
        gradients += spec.elements() * f32_bytes;
        for (int rank = 0; rank < input.parallel.tp; ++rank)  // a shard that several ranks hold goes to all of them
          updates += local_shape(spec, input.model, input.parallel.tp, rank).elements() * compute_bytes(input);
      }
    groups = std::max(groups, static_cast<std::int64_t>(of_rank.size()));
    gradient_bytes = std::max(gradient_bytes, gradients);
    update_bytes = std::max(update_bytes, updates);
  }
  tally.add("all_to_all", "tp", "whole gradients", groups, gradient_bytes);
  const int sent = times_sent(input);
  tally.add("all_to_all", "tp", "updates", sent * groups, sent * update_bytes);
  if (replicas_drift(input.parallel, input.optimizer)) {  // a flag for each group with matrices that were made equal
    std::int64_t most = 0;
    for (int rank = 0; rank < input.parallel.dp; ++rank)
      most = std::max(most, static_cast<std::int64_t>(homed_groups(stage, input.parallel, rank).size()));
    tally.add("all_reduce", "tp", "matrices made equal", most > 0 ? 1 : 0, most * 8);
  }
  if (input.parallel.tp_update != TpUpdate::duplicated && input.parallel.tp_update != TpUpdate::distributed) return;
  std::vector<std::int64_t> count(static_cast<std::size_t>(input.parallel.dp), 0), bytes = count;
  for (std::size_t i = 0; i < stage.specs.size(); ++i)
    for (std::size_t rank = 0; rank < count.size(); ++rank) {
      const TensorSpec& spec = stage.specs[i];
      if (stage.owner[i] != every_rank && stage.owner[i] != static_cast<int>(rank)) continue;
      if (is_homed(stage, static_cast<int>(i), input.parallel)) {
        count[rank] += 1;
        bytes[rank] += spec.elements() * f32_bytes;
      } else if (is_sharded(spec, input)) {  // the norm, a Gram matrix of the whole side each time, and moments
        const auto cut = tensor_shard(spec, input.model, input.parallel.tp, 0).cut;
        const std::int64_t iterations = find_matrix_kind(input.optimizer.kind)->newton_schulz(*input.optimizer.matrix);
        const std::int64_t side = cut == TensorShard::Cut::rows ? spec.cols : spec.rows;
        const std::int64_t moments =
            shard_sums(*input.optimizer.matrix, spec, local_shape(spec, input.model, input.parallel.tp, 0));
        count[rank] += 1 + iterations + (moments > 0 ? 1 : 0);
        bytes[rank] += 2 * f32_bytes * (1 + moments) + iterations * side * side * f32_bytes;
      }
    }
  const bool gather = input.parallel.tp_update == TpUpdate::duplicated;
  tally.add(gather ? "all_gather" : "all_reduce", "tp", gather ? "whole gradients" : "products",
            *std::max_element(count.begin(), count.end()), *std::max_element(bytes.begin(), bytes.end()));
}

// Counts what updates of shares send: gradients from the ranks that have their sums, and weights back; and as the
// busiest rank takes part in them, norms, Gram matrices and rows of polynomials over the ranks of a matrix.
void updates_of_shares(Tally& tally, const StagePlan& stage, const PlanInput& input) {
  if (stage.shares.empty()) return;
  const auto rounds = static_cast<std::int64_t>(share_rounds(stage, input.parallel).size()) - 1;
  std::int64_t elements = 0;
  std::vector<std::int64_t> count(at(input.parallel.dp * input.parallel.tp), 0), bytes = count, gathers = count,
                                                                                 gathered = count;
  const bool any_together = stage.shares.front().ranks > 1;  // these come first
  const std::int64_t steps =
      any_together ? find_matrix_kind(input.optimizer.kind)->newton_schulz(*input.optimizer.matrix) : 0;
  for (const MatrixShare& share : stage.shares) {
    elements += share.elements();
    if (share.ranks == 1) continue;
    const TensorSpec& whole = stage.specs[at(share.spec)];
    const std::int64_t side = std::min(whole.rows, whole.cols);
    const std::int64_t moments = shard_sums(*input.optimizer.matrix, whole, share_shape(share));
    count[at(share.rank)] += 1 + steps + (moments > 0 ? 1 : 0);
    gathers[at(share.rank)] += steps;
    bytes[at(share.rank)] += 2 * f32_bytes * (1 + moments) + steps * side * side * f32_bytes;
    gathered[at(share.rank)] += steps * side * side * compute_bytes(input);
  }
  const int sent = times_sent(input);
  tally.add("all_to_all", "all", "gradients of shares", rounds, elements * f32_bytes);
  tally.add("all_to_all", "all", "shares of weights", sent * rounds, sent * elements * compute_bytes(input));
  const auto most = [](const std::vector<std::int64_t>& of) { return *std::max_element(of.begin(), of.end()); };
  tally.add("all_reduce", "all", "products of shares", most(count), most(bytes));
  tally.add("all_gather", "all", "rows of polynomials", most(gathers), most(gathered));
}

// Counts the model's own collectives, by micro-batch (core/model). With sequence parallelism, attention and MLP each
// gather their input and scatter their sum, forward; backward does both in mirror and gathers the input once more for
// the weight gradients. The embedding scatters its sum and gathers its gradient, the head the other way round. Without
// it, sums go to all ranks and nothing is gathered.
void activations(Tally& tally, const StagePlan& stage, const PlanInput& input) {
  const ModelConfig& model = input.model;
  const BatchShare batch = largest_share(input);
  const std::int64_t tokens = std::int64_t{batch.micro_batch} * input.sequence_length, micros = batch.count;
  const std::int64_t stream = tokens * model.hidden_size * compute_bytes(input);
  const bool first = stage.layers.begin == 0, last = stage.layers.end == model.num_hidden_layers;
  const bool post_norm = model.family == Family::olmo2, again = input.train.recompute;
  const std::int64_t layers = stage.layers.end - stage.layers.begin, ends = (first ? 1 : 0) + (last ? 1 : 0);
  const std::int64_t gathers = micros * (layers * (6 + (again ? 2 : 0)) + ends);
  // A recomputed layer needs the sum after its MLP only where a norm follows it.
  const std::int64_t sums = micros * (layers * (4 + (again ? (post_norm ? 2 : 1) : 0)) + ends);
  if (input.parallel.sequence_parallel) {
    tally.add("all_gather", "tp", "activations", gathers, gathers * stream);
    tally.add("reduce_scatter", "tp", "activations", sums, sums * stream);
  } else {
    tally.add("all_reduce", "tp", "activations", sums, sums * stream);
  }
  if (post_norm) {  // the squares of q and k of each row, over all heads
    const std::int64_t norms = micros * layers * (again ? 3 : 2);
    tally.add("all_reduce", "tp", "norms of q and k", norms, norms * 2 * tokens * f32_bytes);
  }
  if (last) {  // for each row the largest logit, the sum of exponentials and the target's logit
    const ModelPart part = model_part(model, input.parallel.tp, 0, input.parallel.sequence_parallel);
    const std::int64_t rows =
        logit_rows(part, static_cast<int>(tokens), static_cast<std::size_t>(compute_bytes(input)));
    tally.add("all_reduce", "tp", "loss", micros * 2 * ((tokens + rows - 1) / rows), micros * 3 * tokens * f32_bytes);
  }
}

// Gradients of which each rank has a part are summed before they go to their owners.
void partial_gradients(Tally& tally, const StagePlan& stage, const PlanInput& input) {
  const std::int64_t sums = reductions(input);
  for (const PartialRun& run : partial_runs(stage, gradient_buckets(stage, input.parallel), input))
    tally.add("all_reduce", "tp", "partial gradients", sums, sums * run.elements * f32_bytes);
}

void pipeline(Tally& tally, const StagePlan& stage, const PlanInput& input) {
  if (input.parallel.pp == 1) return;
  const BatchShare batch = largest_share(input);
  const std::int64_t tokens = std::int64_t{batch.micro_batch} * input.sequence_length;
  const bool ends = stage.layers.begin == 0 || stage.layers.end == input.model.num_hidden_layers;
  const std::int64_t sends = std::int64_t{batch.count} * (ends ? 1 : 2);
  const std::int64_t stream = tokens * input.model.hidden_size * compute_bytes(input);
  tally.add("send", "pp", "activations", sends, sends * stream / input.parallel.tp);
  if (!input.model.tie_word_embeddings) return;
  const std::int64_t table = largest_shard(tensor_specs(input.model, {0, 0}).front(), input).elements();
  if (stage.layers.begin == 0) tally.add("send", "pp", "tied weights", 1, table * compute_bytes(input));
  if (stage.layers.end == input.model.num_hidden_layers)
    tally.add("send", "pp", "tied gradients", batch.count, batch.count * table * f32_bytes);
}

}  // namespace

std::vector<Collective> collectives(const Plan& plan) {
  const PlanInput& input = plan.input;
  Tally tally;
  for (int number = 0; number < plan.pp; ++number) {
    const StagePlan& stage = plan.stages[at(number)];
    data_parallel(tally, stage, input);
    expert_parallel(tally, stage, input);
    weights_by_block(tally, plan, number);
    tensor_parallel_update(tally, stage, input);
    updates_of_shares(tally, stage, input);
    if (plan.tp > 1) {
      activations(tally, stage, input);
      partial_gradients(tally, stage, input);
    }
    pipeline(tally, stage, input);
    if (plan.ranks() > 1) loss_and_norm(tally, plan, stage);
    tally.end_stage();
  }
  return tally.take();
}

double sent_bytes(const Collective& collective, const Plan& plan) {
  const int size = collective.group == "dp"        ? plan.dp
                   : collective.group == "tp"      ? plan.tp
                   : collective.group == "pp"      ? plan.pp
                   : collective.group == "experts" ? plan.input.parallel.ep
                   : collective.group == "holders" ? expert_holders(plan.input.parallel)
                                                   : plan.ranks();
  const double part = static_cast<double>(size - 1) / size, bytes = static_cast<double>(collective.bytes);
  if (collective.operation == "send") return bytes;
  if (collective.operation == "all_to_all") return bytes * part / size;
  return collective.operation == "all_reduce" ? 2 * bytes * part : bytes * part;
}

}  // namespace sestina
