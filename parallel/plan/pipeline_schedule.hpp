// The work of the ranks of a pipeline in one update, as data: lists of actions that one interpreter runs
// (parallel/step/executor.hpp). K stages lie on P ranks; with P = 1 one process runs all of them. A pure function of a
// few numbers, made by playing the pipeline through: forward 1, backward 2 units of time (its two parts 1 each).
//
// Sources: GPipe (Huang et al. 2019), 1F1B (PipeDream-flush, Narayanan et al. 2021), interleaved 1F1B (Megatron-LM),
// zero-bubble H1 (Qi et al. 2024), asynchronous 1F1B (PipeDream, Narayanan et al. 2019). No Kokkos.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "core/layout/plan.hpp"

namespace sestina {

enum class ActionKind : std::uint8_t { forward, backward, backward_input, backward_weight, update };

// One action of a stage. micro counts from the first micro-batch of the update; an asynchronous schedule also has
// forward passes of later updates' micro-batches.
struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0, micro = 0;
  double begin = 0, end = 0;  // planned, in units
};

struct PipelineOptions {
  ParallelOptions::Schedule kind = ParallelOptions::Schedule::one_f_one_b;
  int stages = 1, ranks = 1;  // the numbers K and P; P divides K
  bool round_robin = false;   // stage s on rank s mod P, else K / P in a row on each
  int micros = 1;             // the number a of micro-batches in an update
  int delay_scale = 1;        // asynchronous: stage s is delay_scale (K-1-s) forwards ahead
  int rank_of(int stage) const { return round_robin ? stage % ranks : stage / (stages / ranks); }
};
// pipeline_ranks: the number P of pipeline ranks that were started.
PipelineOptions pipeline_options(const ParallelOptions&, int pipeline_ranks, int micros);

struct PipelineSchedule {
  std::vector<std::vector<Action>> ranks;  // by rank, in order
  std::vector<Action> all;                 // those of all ranks, in an order that every dependency allows
  std::vector<int> ahead;                  // by stage: forwards ahead of its backwards between updates
  std::vector<int> slots;                  // by stage: micro-batches in flight, at most
  // For each boundary between a stage and the next one: how many micro-batches' activations, and gradients, must be
  // held at a time.
  std::vector<int> activations, gradients;
  int tied_weights = 1, tied_gradients = 1;  // the same for tied embeddings, of minibatches and of micro-batches
  double span = 0;                           // units from the first action of an update to the last
  double bubble = 0;                         // idle share of all ranks in that time
};

PipelineSchedule make_schedule(const PipelineOptions&);

// Returns the updates between the weights that stage s reads in a forward pass and those that its gradient updates:
// ceil(delay_scale (K-1-s) / a); 0 for synchronous schedules.
int update_delay(const PipelineOptions&, int stage);

// True where gradients at the newest weights can be computed in addition to the late ones (metrics.tensors_every): one
// process has all of an asynchronous pipeline, and between updates also the tokens of the next one.
bool compares_gradients(const PlanInput&, const PipelineOptions&, const PipelineSchedule&);

// The place of a stage in its pipeline.
struct StagePlace {
  int number = 0;                                 // the stage's number
  int micros = 1;                                 // micro-batches of an update on this rank
  int slots = 1;                                  // micro-batches in flight
  int ahead = 0, delay = 0;                       // forwards without a backward yet, between updates; this in updates
  int ahead_before = 0;                           // `ahead` of the stage before
  int ahead_first = 0;                            // `ahead` of the first stage
  bool split = false;                             // backward passes run in two parts
  std::int64_t drain_every = 0, merge_every = 0;  // updates after which nothing is in flight; 0: never
  std::int64_t warmup = 0;                        // minibatches that go through one by one before all others
  ParallelOptions::Stash stash = ParallelOptions::Stash::on;
  ParallelOptions::DelayCorrection correction = ParallelOptions::DelayCorrection::none;

  bool recomputes() const { return stash == ParallelOptions::Stash::recompute && delay > 0; }
  // Returns the copies of the weights in addition to the newest: one for each backward pass to come; without a stash
  // one, where an update can come between two forward passes that read the same version; with predictions, the newest
  // too.
  int versions() const {
    const int predicted = delay > 0 && correction == ParallelOptions::DelayCorrection::prediction ? 1 : 0;
    if (stash == ParallelOptions::Stash::on) return delay + predicted;
    return ahead % micros != 0 ? 1 : 0;
  }
  // True for PipeMare, which keeps one copy more, the estimate of earlier weights, and the mean movement in the type of
  // sums.
  bool estimates() const { return delay > 0 && correction == ParallelOptions::DelayCorrection::pipemare; }
  // The pipeline drains before the first minibatch of each segment. A merge begins one: what is trained has another
  // meaning after it, and no pass may have begun under the weights before it.
  std::int64_t segment(std::int64_t minibatch) const {
    if (minibatch < warmup) return minibatch;
    const auto last = [&](std::int64_t every) { return every > 0 ? minibatch / every * every : 0; };
    return std::max({warmup, last(drain_every), last(merge_every)});
  }
  bool drains_before(std::int64_t minibatch) const { return minibatch > 0 && segment(minibatch) == minibatch; }
  // Returns the number after that of the last micro-batch in flight once `updates` are done, in a stage that is so far
  // ahead.
  std::int64_t in_flight_end(std::int64_t updates, int ahead_of_it) const {
    const std::int64_t end = updates * micros + ahead_of_it;
    for (std::int64_t minibatch = updates; minibatch * micros < end; ++minibatch)
      if (drains_before(minibatch)) return minibatch * micros;
    return end;
  }
  // Returns the number of updates in the weights that the forward pass of a minibatch reads.
  std::int64_t version(std::int64_t minibatch) const {
    return std::max({origin, segment(minibatch), minibatch - delay});
  }
  std::int64_t origin = 0;  // the number of updates at which the delays began from zero
};

// Returns the place of a stage. merge_every: updates between merges of the weights (core/layout/weight_form.hpp).
StagePlace stage_place(const PipelineOptions&, const PipelineSchedule&, const ParallelOptions&,
                       std::int64_t merge_every, int stage);

// Draws one row for each rank, one column for a unit of time: digits of micro-batches in forwards, letters in
// backwards.
std::vector<std::string> draw(const PipelineSchedule&, int columns);

}  // namespace sestina
