#include "parallel/plan/exchange_bytes.hpp"

#include <algorithm>

#include "core/optimizer/base/stream_scratch.hpp"
#include "parallel/comm/group_staging.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

std::vector<std::size_t> piece_lengths(const BucketLayout& bucket, int ranks) {
  const std::vector<std::int64_t> cut = bucket_cuts(bucket, ranks);
  std::vector<std::size_t> lengths;
  for (int rank = 0; rank < ranks; ++rank)
    lengths.push_back(static_cast<std::size_t>(cut[at(rank) + 1] - cut[at(rank)]));
  return lengths;
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

NodeLevels planned_levels(const ParallelOptions& parallel) {
  const int members = parallel.node_size > 0 ? std::max(1, parallel.node_size / parallel.tp) : parallel.dp;
  return even_nodes(parallel.dp, members);
}

std::vector<std::vector<int>> homed_groups(const StagePlan& stage, const ParallelOptions& parallel, int dp_rank) {
  using TpUpdate = ParallelOptions::TpUpdate;
  std::vector<std::vector<int>> groups;
  if (parallel.tp == 1 || parallel.partition == ParallelOptions::Partition::groups) return groups;
  if (parallel.tp_update == TpUpdate::home)
    for (const MicroGroup& group : stage.micro_groups[at(dp_rank)]) groups.push_back(group.specs);
  if (parallel.tp_update == TpUpdate::duplicated)
    for (const int spec :
         backward_order(stage.specs, [&](std::size_t i) { return is_homed(stage, static_cast<int>(i), parallel); }))
      if (stage.owner[at(spec)] == dp_rank || stage.owner[at(spec)] == every_rank) groups.push_back({spec});
  return groups;
}

bool is_home(const StagePlan& stage, int spec, int tp_rank) {
  return stage.home[at(spec)] == tp_rank || stage.home[at(spec)] == every_rank;
}

std::array<std::size_t, group_places> home_slot_elements(const StagePlan& stage, const ParallelOptions& parallel,
                                                         int dp_rank, int tp_rank) {
  std::array<std::size_t, group_places> largest = {};
  std::size_t number = 0;
  for (const std::vector<int>& specs : homed_groups(stage, parallel, dp_rank)) {
    std::size_t elements = 0;
    for (const int spec : specs)
      if (is_home(stage, spec, tp_rank))
        elements += aligned_elements(static_cast<std::size_t>(stage.specs[at(spec)].elements()));
    std::size_t& place = largest[number++ % group_places];
    place = std::max(place, elements);
  }
  return largest;
}

std::size_t home_slot_bytes(const StagePlan& stage, const ParallelOptions& parallel, int dp_rank, int tp_rank,
                            StorageWidth width) {
  std::size_t bytes = 0;
  for (const std::size_t elements : home_slot_elements(stage, parallel, dp_rank, tp_rank))
    bytes += elements * (width.accumulate + (width.shared() ? 0 : width.compute));
  return bytes;
}

SumStaging sum_staging_bytes(const StagePlan& stage, const PlanInput& input, const ModelPart& part, int micro_batch,
                             StorageWidth width) {
  SumStaging staging;
  if (part.tp == 1) return staging;
  const auto n = static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(input.sequence_length);
  const std::size_t stream = n * static_cast<std::size_t>(part.config.hidden_size);
  const auto sum = [&](std::size_t count, std::size_t bytes) {
    staging.group = std::max(staging.group, summed_from_others(count, part.tp, part.tp_rank) * bytes);
  };
  if (part.splits_rows()) {  // the other ranks' parts of the rows that stay here
    const auto own = static_cast<std::size_t>(part.own_rows(static_cast<std::int64_t>(n)));
    staging.group = at(part.tp - 1) * own * static_cast<std::size_t>(part.config.hidden_size) * width.compute;
  } else {
    sum(stream, width.compute);
  }
  sum(2 * static_cast<std::size_t>(logit_rows(part, static_cast<int>(n), width.compute)), width.accumulate);
  if (part.config.family == Family::olmo2) sum(2 * n, width.accumulate);  // squares of q and k
  for (const TensorSpec& spec : stage.specs) {  // Gram matrices of the side that is not cut, and second moments
    if (!is_sharded(spec, input)) continue;
    const TensorShard::Cut cut = tensor_shard(spec, input.model, part.tp, part.tp_rank).cut;
    const auto side = static_cast<std::size_t>(cut == TensorShard::Cut::rows ? spec.cols : spec.rows);
    sum(side * side, sizeof(float));
    const TensorSpec shard = local_shape(spec, input.model, part.tp, part.tp_rank);
    sum(static_cast<std::size_t>(shard_sums(*input.optimizer.matrix, spec, shard)), sizeof(double));
  }
  for (const PartialRun& run : partial_runs(stage, gradient_buckets(stage, input.parallel), input)) {
    const auto count = static_cast<std::size_t>(run.elements);
    if (!run.same_heads) {
      sum(count, sizeof(float));
    } else {
      const int holders = part.key_value_holders();
      staging.same_heads =
          std::max(staging.same_heads, summed_from_others(count, holders, part.tp_rank % holders) * sizeof(float));
    }
  }
  return staging;
}

}  // namespace sestina
