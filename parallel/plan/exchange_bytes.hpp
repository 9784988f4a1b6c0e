// Memory of the exchanges of a step on one rank: the numbers by which parallel/step and parallel/comm allocate. No
// Kokkos.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/deck/options.hpp"
#include "core/layout/model_size.hpp"
#include "core/layout/plan.hpp"
#include "core/layout/rank_layout.hpp"
#include "parallel/comm/nodes.hpp"
#include "parallel/rounds/reduce_rounds.hpp"

namespace sestina {

// group_places: the places in which micro-groups that are updated at home take turns. most_chunk_places: the most
// places in which chunks of buckets that are reduced take turns.
inline constexpr std::size_t group_places = 2, most_chunk_places = 3;

// Returns where the ranks of a data-parallel group cut a bucket: at what each owns, or evenly where nobody owns it.
std::vector<std::int64_t> bucket_cuts(const BucketLayout&, int ranks);

// A place of so many elements (16 MiB) costs less than the waits of the additional rounds or chunks that a smaller one
// would need.
inline constexpr std::size_t small_place_elements = std::size_t{4} << 20;

// How the buckets of a stage are reduced, the same on all ranks of the group, and the places for what comes from others
// meanwhile: chunks take turns in them, which together are no larger than the two largest buckets or two small places.
struct BucketReduction {
  std::vector<ReduceRounds> rounds;         // by bucket
  std::size_t places = 0;                   // 0: nothing is reduced
  std::vector<std::size_t> place_elements;  // by rank
  std::size_t bytes(int dp_rank) const {
    return places == 0 ? 0 : places * place_elements[static_cast<std::size_t>(dp_rank)] * sizeof(float);
  }
};
// levels: those of the data-parallel group, for bulk data. device: gradients lie in device memory.
BucketReduction bucket_reduction(const std::vector<BucketLayout>&, const NodeLevels& levels, bool device,
                                 std::size_t small_place = small_place_elements);

// The nodes of a data-parallel group as make_grid lays it out.
NodeLevels planned_levels(const ParallelOptions&);

// Returns the matrices of a data-parallel rank that are updated whole at a tensor-parallel home, group by group in the
// order of their updates; none where nothing is homed.
std::vector<std::vector<int>> homed_groups(const StagePlan&, const ParallelOptions&, int dp_rank);
// True where a tensor-parallel rank is the home of a spec, or one of its homes.
bool is_home(const StagePlan&, int spec, int tp_rank);

// home_slot_elements: the elements of each place at one home, for the largest group that comes there; home_slot_bytes:
// the bytes of the whole gradients and rounded weights in these places.
std::array<std::size_t, group_places> home_slot_elements(const StagePlan&, const ParallelOptions&, int dp_rank,
                                                         int tp_rank);
std::size_t home_slot_bytes(const StagePlan&, const ParallelOptions&, int dp_rank, int tp_rank, StorageWidth);

// Staging bytes of the largest sum over the tensor-parallel group: of those inside a pass, in updates of shards, and of
// gradients of which every rank has a part (stage has the buckets of this rank). same_heads: the same for sums over the
// ranks with the same key and value heads.
struct SumStaging {
  std::size_t group = 0, same_heads = 0;
};
SumStaging sum_staging_bytes(const StagePlan& stage, const PlanInput&, const ModelPart&, int micro_batch, StorageWidth);

}  // namespace sestina
