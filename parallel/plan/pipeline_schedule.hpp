// What the ranks of a pipeline do in one update, as data: lists of actions that one interpreter runs
// (parallel/step/executor.hpp). K stages lie on P ranks; with P = 1 one process runs all of them. A pure function of a
// few numbers, made by playing the pipeline through: forward 1, backward 2 units of time (its two parts 1 each).
//
// Sources: GPipe (Huang et al. 2019), 1F1B (PipeDream-flush, Narayanan et al. 2021), interleaved 1F1B (Megatron-LM),
// zero-bubble H1 (Qi et al. 2024), asynchronous 1F1B (PipeDream, Narayanan et al. 2019). No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "core/layout/plan.hpp"

namespace sestina {

enum class ActionKind : std::uint8_t { forward, backward, backward_input, backward_weight, update };

// micro counts from the first micro-batch of the update; forwards of an asynchronous schedule run ahead of it.
struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0, micro = 0;
  double begin = 0, end = 0;  // planned, in units
};

struct PipelineSetting {
  ParallelOptions::Schedule kind = ParallelOptions::Schedule::one_f_one_b;
  int stages = 1, ranks = 1;  // K, P; P divides K
  bool round_robin = false;   // stage s on rank s mod P, else K / P in a row on each
  int micros = 1;             // of an update, a
  int delay_scale = 1;        // asynchronous: stage s runs delay_scale (K-1-s) forwards ahead
  int rank_of(int stage) const { return round_robin ? stage % ranks : stage / (stages / ranks); }
};
// pipeline_ranks: P, as started.
PipelineSetting pipeline_setting(const ParallelOptions&, int pipeline_ranks, int micros);

struct PipelineSchedule {
  std::vector<std::vector<Action>> ranks;  // by rank, in order
  std::vector<Action> all;                 // of all ranks, in an order that every dependency allows
  std::vector<int> ahead;                  // by stage: forwards that it is ahead of its backwards between updates
  std::vector<int> slots;                  // by stage: micro-batches in flight, at most
  // By boundary between stage s and the next: micro-batches whose activation, and gradient, must be held at a time.
  std::vector<int> activations, gradients;
  int tied_weights = 1, tied_gradients = 1;  // likewise of tied embeddings: minibatches, and micro-batches
  double span = 0;                           // units from the first action of an update to the last
  double bubble = 0;                         // idle share of all ranks in that time
};

PipelineSchedule make_schedule(const PipelineSetting&);

// Updates between the weights that stage s reads in a forward pass and those that its gradient updates:
// ceil(delay_scale (K-1-s) / a); 0 for synchronous schedules.
int update_delay(const PipelineSetting&, int stage);

// What a stage of so many updates' delay holds beside its newest weights, as copies of what is computed with:
// for backward passes to come; without a stash one, where an update can come between two forward passes that read the
// same version; predictions, the newest too; PipeMare's estimate of earlier weights.
struct HeldWeights {
  int versions = 0, estimates = 0;
  bool velocity = false;  // and the mean movement, in the type of sums
};
HeldWeights held_weights(const ParallelOptions&, const PipelineSetting&, int stage);

// One row for each rank, one column for a unit of time: digits of micro-batches in forwards, letters in backwards.
std::vector<std::string> draw(const PipelineSchedule&, int columns);

}  // namespace sestina
