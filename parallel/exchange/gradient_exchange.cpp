#include "parallel/exchange/gradient_exchange.hpp"

#include <algorithm>

#include "core/layout/model_size.hpp"
#include "parallel/plan/block_turns.hpp"
#include "parallel/plan/expert_layout.hpp"

namespace sestina {
namespace {

std::vector<std::size_t> piece_lengths(const BucketLayout& bucket, int ranks) {
  const std::vector<std::int64_t> cut = bucket_cuts(bucket, ranks);
  std::vector<std::size_t> lengths;
  for (int rank = 0; rank < ranks; ++rank)
    lengths.push_back(static_cast<std::size_t>(cut[at(rank) + 1] - cut[at(rank)]));
  return lengths;
}

// Returns the bytes of a tensor's weights as they are computed with.
std::int64_t sent_weight(const TensorSpec& spec, const PlanInput& input) {
  const TensorSpec local = largest_shard(spec, input);
  return local.is_coded() ? local.rows * local.row_codes()
                          : local.elements() * (local.is_vector() ? f32_bytes : sent_width(input));
}

// Adds the weights that come block by block, as often as passes read a block that is not in its place.
void weights_by_block(Traffic& traffic, const Plan& plan, int number) {
  if (plan.input.parallel.dp == 1 || !weights_in_turn(plan.input)) return;
  const StagePlan& stage = plan.stages[at(number)];
  const std::vector<Action>& actions = plan.schedule.ranks[at(plan.pipe.rank_of(number))];
  const std::vector<std::int64_t> gathers = gathers_of_step(stage, actions, number);
  const ParallelOptions& parallel = plan.input.parallel;
  for (std::size_t block = 0; block < gathers.size(); ++block) {
    std::int64_t bytes = 0, of_experts = 0;
    for (const TensorSpec& spec : stage.specs)
      if (at(spec.block) == block)
        (is_shared_out(spec, parallel.ep) ? of_experts : bytes) += sent_weight(spec, plan.input);
    traffic.add("all_gather", "dp", "weights", gathers[block], gathers[block] * bytes);
    if (of_experts > 0 && expert_holders(parallel) > 1)
      traffic.add("all_gather", "holders", "expert weights", gathers[block], gathers[block] * of_experts / parallel.ep);
  }
}

// Adds gradients to their owners and weights back, bucket by bucket; where nobody owns a bucket, sums go to all
// ranks. Weights travel without the gaps between them, as they are computed with: vectors in fp32.
// Holders of the same experts exchange those of these (parallel.ep).
void owned_buckets(Traffic& traffic, const StagePlan& stage, const PlanInput& input) {
  if (input.parallel.dp == 1) return;
  const std::int64_t sums = reductions_of_step(input);
  for (const auto* buckets : {&stage.buckets, &stage.scalar_buckets})
    for (const BucketLayout& bucket : *buckets) {
      const bool experts = is_of_experts(stage, bucket, input.parallel.ep);
      if (experts && expert_holders(input.parallel) == 1) continue;
      const char* const group = experts ? "holders" : "dp";
      traffic.add("reduce_scatter", group, experts ? "expert gradients" : "gradients", sums,
                  sums * bucket.elements * f32_bytes);
      if (bucket.cut.empty() || input.parallel.reduce == ParallelOptions::Reduce::all)
        traffic.add("all_gather", group, experts ? "expert gradients" : "gradients", 1, bucket.elements * f32_bytes);
      if (bucket.cut.empty()) continue;
      if (weights_in_turn(input)) continue;
      std::int64_t bytes = 0;
      for (const int number : bucket.specs) bytes += sent_weight(stage.specs[at(number)], input);
      const int sent = times_sent(input);
      traffic.add("all_gather", group, experts ? "expert weights" : "weights", sent, sent * bytes);
    }
}

}  // namespace

std::vector<std::int64_t> bucket_cuts(const BucketLayout& bucket, int ranks) {
  if (!bucket.cut.empty()) return bucket.cut;
  std::vector<std::int64_t> even;
  for (int rank = 0; rank <= ranks; ++rank) even.push_back(bucket.elements * rank / ranks);
  return even;
}

BucketReduction bucket_reduction(const std::vector<BucketLayout>& buckets, const NodeLevels& levels, bool device,
                                 std::size_t small_place) {
  BucketReduction reduction;
  const int ranks = static_cast<int>(levels.node_of.size());
  if (ranks == 1 || buckets.empty()) return reduction;
  LinkModel link;
  link.packs = !device;
  std::size_t limit = small_place;
  for (const BucketLayout& bucket : buckets) limit = std::max(limit, static_cast<std::size_t>(bucket.elements));
  reduction.place_elements.resize(at(ranks));
  for (const BucketLayout& bucket : buckets) {
    const std::vector<std::size_t> lengths = piece_lengths(bucket, ranks);
    reduction.rounds.push_back(choose_rounds(lengths, levels, limit, link));
    const std::vector<std::size_t> elements = elements_of_chunk(reduction.rounds.back(), lengths);
    for (std::size_t rank = 0; rank < elements.size(); ++rank)
      reduction.place_elements[rank] = std::max(reduction.place_elements[rank], elements[rank]);
  }
  const std::size_t place = *std::max_element(reduction.place_elements.begin(), reduction.place_elements.end());
  reduction.places = std::clamp<std::size_t>(place == 0 ? 1 : 2 * limit / place, 1, most_chunk_places);
  return reduction;
}

void add_gradients_and_weights(Traffic& traffic, const Plan& plan, int number) {
  owned_buckets(traffic, plan.stages[at(number)], plan.input);
  weights_by_block(traffic, plan, number);
}

}  // namespace sestina
