#include "parallel/plan/exchange_bytes.hpp"

#include <algorithm>

#include "parallel/comm/group_staging.hpp"
#include "parallel/plan/plan_layout.hpp"
#include "parallel/plan/shard_layout.hpp"
#include "parallel/plan/tensor_shard.hpp"

namespace sestina {
namespace {

std::size_t length(const std::vector<std::int64_t>& cut, int rank) {
  return static_cast<std::size_t>(cut[at(rank) + 1] - cut[at(rank)]);
}

}  // namespace

std::vector<std::int64_t> bucket_cuts(const BucketLayout& bucket, int ranks) {
  if (!bucket.cut.empty()) return bucket.cut;
  std::vector<std::int64_t> even;
  for (int rank = 0; rank <= ranks; ++rank) even.push_back(bucket.elements * rank / ranks);
  return even;
}

// Its own piece from each mate and each other node; pieces of other nodes that it passes on, from each mate.
std::size_t received_elements(const NodeLevels& levels, int rank, const std::vector<std::int64_t>& cut) {
  const std::size_t mates = levels.mates(rank).size() - 1;
  std::size_t count = length(cut, rank) * (mates + levels.nodes.size() - 1);
  for (const int owner : levels.passed_on_by(rank)) count += length(cut, owner) * mates;
  return count;
}

std::size_t received_bytes(const std::vector<BucketLayout>& buckets, const NodeLevels& levels, int dp_rank) {
  const int ranks = static_cast<int>(levels.node_of.size());
  if (ranks == 1) return 0;
  std::size_t largest = 0;
  for (const BucketLayout& bucket : buckets)
    largest = std::max(largest, received_elements(levels, dp_rank, bucket_cuts(bucket, ranks)));
  return bucket_places * largest * sizeof(float);
}

NodeLevels planned_levels(const ParallelOptions& parallel) {
  const int members = parallel.node_size > 0 ? std::max(1, parallel.node_size / parallel.tp) : parallel.dp;
  return even_nodes(parallel.dp, members);
}

std::vector<std::vector<int>> homed_groups(const StagePlan& stage, const ParallelOptions& parallel, int dp_rank) {
  using TpUpdate = ParallelOptions::TpUpdate;
  std::vector<std::vector<int>> groups;
  if (parallel.tp == 1) return groups;
  if (parallel.tp_update == TpUpdate::home)
    for (const MicroGroup& group : stage.micro_groups[at(dp_rank)]) groups.push_back(group.specs);
  if (parallel.tp_update == TpUpdate::duplicated)
    for (const int spec :
         backward_order(stage.specs, [&](std::size_t i) { return stage.is_matrix(static_cast<int>(i)); }))
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
  if (part.splits_rows()) {  // parts of the rows that stay here
    const auto own = static_cast<std::size_t>(part.own_rows(static_cast<std::int64_t>(n)));
    staging.group = at(part.tp - 1) * own * static_cast<std::size_t>(part.config.hidden_size) * width.compute;
  } else {
    sum(stream, width.compute);
  }
  sum(2 * static_cast<std::size_t>(logit_rows(part, static_cast<int>(n), width.compute)), width.accumulate);
  if (part.config.family == Family::olmo2) sum(2 * n, width.accumulate);  // squares of q and k
  for (const TensorSpec& spec : stage.specs) {                            // Gram matrices of the side that is not cut
    if (!is_sharded(spec, input)) continue;
    const TensorShard::Cut cut = tensor_shard(spec, input.model, part.tp, part.tp_rank).cut;
    const auto side = static_cast<std::size_t>(cut == TensorShard::Cut::rows ? spec.cols : spec.rows);
    sum(side * side, sizeof(float));
  }
  for (const PartialRun& run : partial_runs(stage, gradient_buckets(stage), input)) {
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
