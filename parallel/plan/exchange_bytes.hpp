// Memory of the exchanges of a step on one rank: the numbers by which parallel/step and parallel/comm allocate. No
// Kokkos.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/deck/options.hpp"
#include "core/layout/model_part.hpp"
#include "core/layout/model_size.hpp"
#include "core/layout/plan.hpp"
#include "parallel/comm/node_levels.hpp"

namespace sestina {

// Buckets that are reduced take turns in so many places, micro-groups that are updated at home in so many.
inline constexpr std::size_t bucket_places = 3, group_places = 2;

// Where the ranks of a data-parallel group cut a bucket: at what each owns, or evenly where nobody does.
std::vector<std::int64_t> bucket_cuts(const BucketLayout&, int ranks);

// Elements that come to a rank from others when a bucket cut like this is summed.
std::size_t received_elements(const NodeLevels&, int rank, const std::vector<std::int64_t>& cut);

// Bytes of all places, for the largest bucket. levels: of the data-parallel group.
std::size_t received_bytes(const std::vector<BucketLayout>&, const NodeLevels& levels, int dp_rank);

// The nodes of a data-parallel group, as make_grid lays it out: on each so many of its ranks.
NodeLevels planned_levels(const ParallelOptions&);

// The matrices of a data-parallel rank that are updated whole at a tensor-parallel home, group by group in the order of
// their updates; none where nothing is homed.
std::vector<std::vector<int>> homed_groups(const StagePlan&, const ParallelOptions&, int dp_rank);
// Whether a tensor-parallel rank is the home of a spec, or one of them.
bool is_home(const StagePlan&, int spec, int tp_rank);

// Elements of each place at one home, for the largest group that comes there; bytes of their whole gradients and
// rounded weights.
std::array<std::size_t, group_places> home_slot_elements(const StagePlan&, const ParallelOptions&, int dp_rank,
                                                         int tp_rank);
std::size_t home_slot_bytes(const StagePlan&, const ParallelOptions&, int dp_rank, int tp_rank, StorageWidth);

// The largest of the sums over the tensor-parallel group: inside a pass, in updates of shards, and of gradients of
// which every rank has a part (stage: with the buckets of this rank). same_heads: of the ranks with the same key and
// value heads.
struct SumStaging {
  std::size_t group = 0, same_heads = 0;
};
SumStaging sum_staging_bytes(const StagePlan& stage, const PlanInput&, const ModelPart&, int micro_batch, StorageWidth);

}  // namespace sestina
