// A stage of a model on this rank as the evaluator and the executor drive it. The types of an execution space and of
// its numbers end here: calls take numbers of micro-batches, plain values and host memory. parallel/stage implements
// them; a test may do so in its own way. Each call is one of a pass or of an update, none is one of an element.
//
// Micro-batches are numbered on through the run. No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/layout/rotation_record.hpp"
#include "core/memory/state_field.hpp"
#include "core/model/first_bad.hpp"
#include "core/optimizer/base/optimizer_control.hpp"
#include "core/optimizer/base/update_record.hpp"
#include "core/stage_values.hpp"
#include "core/token_decoder.hpp"
#include "parallel/plan/coherence.hpp"
#include "parallel/plan/pipeline_schedule.hpp"
#include "parallel/step/receive_order.hpp"

namespace sestina {

// A stage that only runs forward passes, at the newest weights.
class ForwardStage {
 public:
  static constexpr std::int64_t evaluation = -1;  // in place of the number of a micro-batch

  ForwardStage() = default;
  virtual ~ForwardStage() = default;
  ForwardStage(const ForwardStage&) = delete;
  ForwardStage& operator=(const ForwardStage&) = delete;

  virtual const StagePlace& place() const = 0;
  virtual const StagePlan& plan() const = 0;

  // Loads the tokens of a micro-batch, or of an evaluation, for all stages of this rank. The tokens of an evaluation
  // replace those of the last one; a stage that does not fence in evaluate() waits for that here.
  virtual void load(std::int64_t micro, const BatchView&) = 0;
  // Runs a forward pass over the tokens of the evaluation. The last stage returns the sum of their losses (fences), the
  // others return 0.
  virtual double evaluate() = 0;
  // Called on the last stage after that: losses (N) of the N tokens, and one row of logits (V) over the vocabulary.
  // They fence.
  virtual void token_losses(float* host) = 0;
  virtual void logits(int row, float* host) = 0;
  // Makes a decoder of a stage that has all layers and must outlive it. Tensor-parallel ranks decode together: all make
  // the same calls but for logits().
  virtual std::unique_ptr<TokenDecoder> make_decoder(const DecoderOptions&) = 0;

  virtual void initialise(std::uint64_t seed) = 0;              // weights as functions of (seed, name, index)
  virtual std::vector<StateField> model_fields() const = 0;     // "/model/..." that this rank keeps
  virtual std::vector<std::string> formed_weights() const = 0;  // those not dense, by their dense names
  virtual void set_dense(const std::string& formed, const float* host) = 0;  // sets one of these, whole; fences
  virtual void weights_changed() = 0;  // after weights were written on all ranks: rounds, sends, waits
  // Copy between a field in the memory that this rank computes in and host memory of its size. They fence.
  virtual void copy_to_host(const StateField&, void* host) const = 0;
  virtual void copy_from_host(const StateField&, const void* host) const = 0;

  // For benchmarks: time and take the matrix products of the passes since the last call.
  virtual void time_products(bool on) = 0;
  virtual ProductCount take_products() = 0;
};

// The factors of gradients.
struct ClipScales {
  double all = 1;
  std::span<const double> by_tensor = {};  // of the stage, in its place; empty: `all` is that of each
};

// The delay of the gradient of an update.
struct StageDelay {
  double updates = 0;            // updates between the weights of its forward pass and those that it updates
  double moved = 0, weight = 0;  // as in WeightDrift, in one of metrics.every updates; NaN: the older weights
                                 // are not kept
};

// Seconds that forward passes waited for weights, that backward passes spent on sums of gradients and updates on
// matrices that travel, and that updates before the last one took beyond their call: a lone rank's device goes on with
// them under the first passes of the next step.
struct StageSeconds {
  double gather = 0, reduce = 0, homes = 0, update = 0;
};

// The exchanges that a step starts on this rank, by what they carry, and the sums of an update over tensor-parallel
// ranks.
struct StageExchangeCount {
  std::int64_t gradients = 0, weights = 0, homes = 0, sums = 0;
};

// A stage that trains as well. The calls are listed in this order: those that the actions of a step need, as they come
// in a step; those with which a run begins and goes on; those by which the stage tells of itself.
class PipelineStage : public virtual ForwardStage {
 public:
  // Called before the passes of update t, at a factor of the peak learning rates: with train.lookahead the weights move
  // on, and look_back undoes that where the update is refused.
  virtual void look_ahead(std::int64_t t, double factor) = 0;
  virtual void look_back() = 0;
  // Says what the actions of an update will receive, whose first micro-batch is `first`: activations of micro-batches
  // begin to end - 1, and gradients of each of the update's.
  virtual void expect_messages(std::int64_t first, std::int64_t begin, std::int64_t end) = 0;
  // On a device: starts the receive of a message to this stage, in the one order of all ranks (receive_order.hpp).
  virtual void start_receive(PipelineReceive::What, std::int64_t micro) = 0;
  virtual void forward(std::int64_t micro) = 0;
  // Runs a backward pass; where backward passes have two parts, the first of them, which backward_weight follows.
  virtual void backward(std::int64_t micro, double gradient_scale) = 0;
  virtual void backward_weight(std::int64_t micro) = 0;
  // With parallel.overlap_updates: called after the last backward pass of update t and before what follows. Runs the
  // update of each matrix here (parallel/stage/bucket_updates.hpp) when its gradient is there, clipped at clip_norm (0:
  // not), but for those whose gradients are not finite; update() leaves all of them out. Returns the seconds that
  // updates took, without waits for gradients.
  virtual double update_matrices(std::int64_t t, double factor, double clip_norm) = 0;
  // Called after the last backward pass of an update: completes gradients where they are owned.
  virtual void finish_gradients() = 0;
  // Called after that: returns sums of squares by tensor of the whole stage, and after them the flag of weights that
  // are not finite. losses: those of all micro-batches of the step, complete on return where the stage is the last. The
  // result is equal on all ranks of the stage.
  virtual std::span<const double> sum(std::span<double> losses) = 0;
  // Runs update number t on weights that have seen t - 1.
  virtual void update(std::int64_t t, double factor, const ClipScales&) = 0;
  virtual void withhold() = 0;                  // the weights stay as they are, one version on
  virtual const StageDelay& delay() const = 0;  // that of the last update
  virtual void complete() = 0;                  // called before the host waits for the space
  virtual void finish_gather() = 0;             // waits until all weights are there
  virtual void synchronise() = 0;               // makes drifting replicas equal until the next update

  // Says that the weights are those after so many updates, of which delays count those from `origin` on.
  virtual void start_at(std::int64_t updates, std::int64_t origin) = 0;
  // Called when the weights are there: the past that corrections of the delay know was read from a checkpoint, or is
  // empty.
  virtual void start_corrections(bool read) = 0;
  // Called between updates: in_flight_fields returns what passes to come will read of the past, restored says that it
  // was read. in_flight: passes are under way; reading: also returns fields that another rank saves.
  virtual std::vector<StateField> in_flight_fields(bool in_flight, bool reading) const = 0;
  virtual void restored() = 0;
  // Forgets forward passes that went ahead, here and on the way here; delays start over.
  virtual void drop_in_flight() = 0;

  // Averages of weights in the optimizer's state (train.ema_tau, schedule-free) start at the weights as they are.
  virtual void start_averages() = 0;
  // Exchanges the weights with their average, where the optimizer keeps one at which the model is evaluated; the stage
  // then computes with these. A second call undoes the first. Collective over the ranks of the stage.
  virtual void swap_average() = 0;

  virtual std::vector<StateField> optimizer_fields() const = 0;  // those that this rank keeps
  // Where on, the passes that follow look, block by block, for the first value that is not finite, until it is turned
  // off: far slower. first_nonfinite returns what they found.
  virtual void look_for_nonfinite(bool on) = 0;
  virtual std::optional<FirstBad> first_nonfinite() const = 0;
  virtual void spoil_next_forward() = 0;  // a fault on purpose: an activation of the middle layer becomes NaN

  virtual OptimizerControl& optimizer_control() = 0;
  virtual StageSeconds take_seconds() = 0;  // seconds since the last call
  virtual CoherenceCount take_coherence() = 0;
  virtual StageExchangeCount exchange_count() const = 0;
  // The largest attention logit of the last update's passes on all ranks of the stage, where optimizer.qk_clip watches
  // it, else -infinity.
  virtual double largest_score() const = 0;
  // The largest load of this rank's layers in the last update, made or withheld; none without experts.
  virtual LargestLoad largest_load() const = 0;
  // Returns a record of each tensor that this rank updates, measured where the last update was one of
  // metrics.updates_every.
  virtual std::vector<UpdateRecord> update_records() const = 0;
  // Returns a record of each weight in rotations that this rank measured after the last update of
  // metrics.rotations_every.
  virtual std::vector<RotationRecord> rotation_records() const = 0;
  // Returns the layers that were merged early after the last update, the same on all ranks of the stage.
  virtual std::vector<EarlyMerge> early_merges() const { return {}; }
};

}  // namespace sestina
