// The plan of a run: who owns which matrix, where gradients lie, what is sent. A pure function of the deck: every rank
// computes the same. No Kokkos.
#pragma once
#include "core/deck/options.hpp"
#include "core/layout/plan.hpp"

namespace sestina {

// Layers of one pipeline stage: even parts in order, or as the deck says.
LayerRange stage_layers(const Options&, int stage);

// One stage by itself. Matrices are the tensors of optimizer.kind (optimizer/routing.hpp).
StagePlan plan_stage(const Options&, LayerRange);

// Buckets as tensor-parallel rank `tp_rank` has them: names and owners are those of the plan, sizes its own.
void lay_out_buckets(StagePlan&, const Options&, int tp_rank);

Plan make_plan(const Options&);

}  // namespace sestina
