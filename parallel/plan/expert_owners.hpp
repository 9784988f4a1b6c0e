// Who updates a tensor where ranks hold different experts (parallel.ep): of one that every rank updates
// (parallel.partition = "replicated"), those that hold it, and the first of these stands for all of them. No Kokkos.
#pragma once
#include "parallel/plan/expert_layout.hpp"

namespace sestina {

// Returns whether a data-parallel rank updates a matrix, or a home or shards in its tensor-parallel group do.
inline bool is_owner(const StagePlan& stage, int spec, const PlanInput& input, int dp_rank) {
  const int owner = stage.owner[at(spec)];
  return owner == every_rank ? holds(stage.specs[at(spec)], input, dp_rank) : owner == dp_rank;
}

// Returns whether it is the one that counts the tensor and writes it to checkpoints.
inline bool is_first_owner(const StagePlan& stage, int spec, const PlanInput& input, int dp_rank) {
  const bool apart = is_shared_out(stage.specs[at(spec)], input.parallel.ep);
  return stage.owner[at(spec)] != every_rank || dp_rank < (apart ? input.parallel.ep : 1);
}

}  // namespace sestina
