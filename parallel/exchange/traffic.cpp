#include "parallel/exchange/traffic.hpp"

#include <algorithm>
#include <string_view>

#include "core/layout/rank_layout.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/exchange/pipeline_exchange.hpp"
#include "parallel/exchange/tensor_sums.hpp"
#include "parallel/exchange/update_exchange.hpp"
#include "parallel/plan/block_turns.hpp"
#include "parallel/plan/expert_layout.hpp"
#include "parallel/plan/rank_report.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

Collective* find(std::vector<Collective>& list, const Collective& kind) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Collective& other) {
    return other.operation == kind.operation && other.what == kind.what;
  });
  return found == list.end() ? nullptr : &*found;
}

// Adds the rows of tokens that travel to their experts and back at the mean load, as core/model/experts.hpp has it,
// and the numbers of them that ranks tell each other first. Forward: inputs, outputs. Backward: gradients of outputs
// and of inputs, the weights of choices and their gradients, and inputs once more. A block that is recomputed sends its
// inputs again.
void tokens_to_experts(Traffic& traffic, const StagePlan& stage, const PlanInput& input) {
  const std::int64_t ep = input.parallel.ep;
  if (ep == 1) return;
  const BatchShare batch = largest_share(input);
  const std::int64_t tokens = std::int64_t{batch.micro_batch} * input.sequence_length;
  const std::int64_t layers = std::int64_t{batch.count} * (stage.layers.end - stage.layers.begin);
  const std::int64_t again = input.train.recompute ? 1 : 0, ways = 5 + again, forward = 1 + again;
  const std::int64_t rows = ep * tokens * input.model.num_experts_per_tok;
  traffic.add("all_to_all", "experts", "tokens", ways * layers,
              ways * layers * rows * input.model.hidden_size * sent_width(input));
  traffic.add("all_to_all", "experts", "choice weights", 2 * layers, 2 * layers * rows * f32_bytes);
  traffic.add("all_to_all", "experts", "token counts", forward * layers,
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

// Adds losses of all micro-batches and squares, in fp64; squares of each tensor's shards; with both, the flag of
// weights that are not finite; and what the trainer asks all ranks.
void loss_and_norm(Traffic& traffic, const Plan& plan, const StagePlan& stage) {
  constexpr std::int64_t f64 = 8;
  const PlanInput& input = plan.input;
  const ParallelOptions& parallel = input.parallel;
  const auto tensors = static_cast<std::int64_t>(stage.specs.size());
  const std::int64_t micros = largest_share(input).all;
  if (parallel.dp > 1)
    traffic.add("all_reduce", "dp", "loss and norm", 1, f64 * (micros + square_places(stage, input) + 1));
  if (parallel.dp > 1 && input.model.has_experts())
    traffic.add("all_reduce", "dp", "loads of experts", 1,
                f64 * (stage.layers.end - stage.layers.begin) * input.model.num_experts);
  if (parallel.tp > 1) traffic.add("all_gather", "tp", "norm", 1, f64 * (tensors + 1) * parallel.tp);
  const ReportParts told = told_parts(parallel, input.optimizer, input.model);
  const auto bytes = [report = RankReport(parallel.pp)](const ReportParts& parts) {
    return static_cast<std::int64_t>(count_numbers(report, parts)) * f64;
  };
  if (input.optimizer.qk_clip > 0)
    traffic.add("all_reduce", "all", "largest scores", 1,
                f64 * input.model.num_hidden_layers * input.model.num_attention_heads);
  if (parallel.is_async()) {  // nobody waits: a step's numbers travel while later ones are under way
    traffic.add("all_gather", "all", "numbers of a step", 1, bytes(told) * parallel.ranks());
    return;
  }
  if (parallel.pp > 1) {
    std::int64_t all = 0;
    for (const StagePlan& other : plan.stages) all += static_cast<std::int64_t>(other.specs.size());
    traffic.add("all_reduce", "pp", "loss and norm", 1, f64 * (micros + all + 1));
  }
  traffic.add("all_reduce", "all", "votes", Votes::polls, Votes::polls * bytes({.votes = true}));
  if (told.replicas)
    traffic.add("all_gather", "all", "drift of replicas", 1, bytes({.replicas = true}) * parallel.ranks());
  traffic.add(
      "all_gather", "all", "times", 1,
      bytes({.times = true, .scores = told.scores, .tiers = told.tiers, .loads = told.loads}) * parallel.ranks());
}

// Adds the rows of activations that a layer gathers, by micro-batch (core/model). With sequence parallelism, attention
// and MLP each gather their input forward, and their gradient and once more their input, for the weight gradients,
// backward; the embedding gathers its gradient, the head its input. Without it nothing is gathered.
void gathered_rows(Traffic& traffic, const StagePlan& stage, const PlanInput& input) {
  if (input.parallel.tp == 1 || !input.parallel.sequence_parallel) return;
  const BatchShare batch = largest_share(input);
  const std::int64_t tokens = std::int64_t{batch.micro_batch} * input.sequence_length;
  const bool first = stage.layers.begin == 0, last = stage.layers.end == input.model.num_hidden_layers;
  const std::int64_t layers = stage.layers.end - stage.layers.begin, ends = (first ? 1 : 0) + (last ? 1 : 0);
  const std::int64_t gathers = batch.count * (layers * (input.train.recompute ? 8 : 6) + ends);
  traffic.add("all_gather", "tp", "activations", gathers,
              gathers * tokens * input.model.hidden_size * sent_width(input));
}

}  // namespace

void Traffic::add(const char* operation, const char* group, const char* what, std::int64_t count, std::int64_t bytes) {
  if (count == 0) return;
  const Collective one{operation, group, what, count, bytes};
  Collective* const known = find(rank_, one);
  if (known == nullptr) return rank_.push_back(one);
  known->count += count;
  known->bytes += bytes;
}

void Traffic::end_rank() {
  for (const Collective& one : rank_) {
    Collective* const known = find(all_, one);
    if (known == nullptr) {
      all_.push_back(one);
      continue;
    }
    known->count = std::max(known->count, one.count);
    known->bytes = std::max(known->bytes, one.bytes);
  }
  rank_.clear();
}

TensorSpec largest_shard(const TensorSpec& spec, const PlanInput& input) {
  return local_shape(spec, input.model, input.parallel.tp, 0);
}

std::int64_t reductions_of_step(const PlanInput& input) {
  return gradients_in_turn(input.parallel) ? largest_share(input).count : 1;
}

std::int64_t times_sent(const PlanInput& input) { return input.train.lookahead.factor > 0 ? 2 : 1; }

// What differs between the data-parallel ranks of a stage are their updates.
std::vector<Collective> collectives(const Plan& plan) {
  const PlanInput& input = plan.input;
  const ModelPart part = part_of_rank(input, 0);
  Traffic traffic;
  for (int number = 0; number < plan.pp; ++number) {
    const StagePlan& stage = plan.stages[at(number)];
    add_gradients_and_weights(traffic, plan, number);
    tokens_to_experts(traffic, stage, input);
    add_shares(traffic, stage, input);
    gathered_rows(traffic, stage, input);
    add_sums(traffic, sums_of_passes(stage, input, part));
    add_sums(traffic, sums_of_gradients(stage, input, part));
    add_pipeline(traffic, plan, number);
    if (plan.ranks() > 1) loss_and_norm(traffic, plan, stage);
    for (int dp_rank = 0; dp_rank < plan.dp; ++dp_rank) {
      add_homes(traffic, stage, input, dp_rank);
      add_sums(traffic, sums_of_updates(stage, input, part, dp_rank));
      traffic.end_rank();
    }
  }
  return traffic.take();
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
