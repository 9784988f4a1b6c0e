// The plan of a run: who owns which matrix, where gradients lie, what is sent. A pure function of the deck: every rank
// computes the same. No Kokkos.
#pragma once
#include "core/layout/plan.hpp"
#include "parallel/plan/coherence.hpp"
#include "parallel/plan/pipeline_schedule.hpp"

namespace sestina {

// The micro-batches of one data-parallel rank, of the `all` of a step: numbers first, first + stride, ..., `count` of
// them. They follow one another; where gradients take turns (block_turns.hpp), ranks take them in turn, so that the sum
// over ranks, which is taken of each time's micro-batches, is the lower part of the tree over all of them.
struct BatchShare {
  int micro_batch = 1;  // sequences in each
  int all = 1, first = 0, count = 1, stride = 1;
  int number(int micro) const { return first + micro * stride; }  // of the rank's micro-batch `micro`
};
BatchShare batch_share(const PlanInput&, int dp_rank);
BatchShare largest_share(const PlanInput&);  // at least one micro-batch

// The plan is computed once for a run: the memory check, the executor, what `plan` prints and the tests read this one.
struct Plan {
  PlanInput input;
  int dp = 1, tp = 1, pp = 1;
  std::vector<StagePlan> stages;
  PipelineOptions pipe;                       // those of data-parallel ranks with the largest share of the batch
  PipelineSchedule schedule;                  // that of the same ranks
  LoadRatio dp_cost, dp_elements, home_cost;  // dp_elements' bound is not computed: 1
  // The cost of all ranks: the largest over the mean that work without anything done twice would have, and the least
  // that this can be: of whole matrices, or, with parallel.partition = "groups", of what they can be divided into.
  LoadRatio machine_cost;
  LoadRatio dp_received;  // what the rank that receives most of each bucket of gradients receives
  CoherencePlan coherence;
  int ranks() const { return dp * tp * pp; }
};

// Returns the layers of one pipeline stage: even parts in order, or as the deck says.
LayerRange stage_layers(const PlanInput&, int stage);

// Plans one stage by itself. Matrices are the tensors of optimizer.kind (core/optimizer/base/routing.hpp).
StagePlan plan_stage(const PlanInput&, LayerRange);

// Lays out the buckets as a rank has them: names and owners are those of the plan, sizes its own; buckets of experts,
// with cuts for their holders (expert_layout.hpp), come after the others.
void lay_out_buckets(StagePlan&, const PlanInput&, int tp_rank, int dp_rank = 0);

Plan make_plan(const PlanInput&);

}  // namespace sestina
