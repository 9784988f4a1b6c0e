// A stage of a model on this rank as the evaluator and the executor drive it. Here end the types of an execution space
// and of the numbers in it: calls take numbers of micro-batches, plain values and host memory. parallel/stage
// implements them; a test may do so in its own way. Each call is one of a pass or of an update, none is one of an
// element.
//
// Micro-batches are numbered on through the run. No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/memory/state_field.hpp"
#include "core/optimizer/base/optimizer_control.hpp"
#include "core/stage_values.hpp"
#include "core/token_decoder.hpp"
#include "parallel/plan/coherence.hpp"
#include "parallel/plan/pipeline_schedule.hpp"
#include "parallel/step/receive_order.hpp"

namespace sestina {

// Forward passes alone, at the newest weights.
class ForwardStage {
 public:
  static constexpr std::int64_t evaluation = -1;  // in place of the number of a micro-batch

  ForwardStage() = default;
  virtual ~ForwardStage() = default;
  ForwardStage(const ForwardStage&) = delete;
  ForwardStage& operator=(const ForwardStage&) = delete;

  virtual const StagePlace& place() const = 0;
  virtual const StagePlan& plan() const = 0;

  // The tokens of a micro-batch, or of an evaluation, for all stages of this rank. Those of an evaluation take the
  // place of the last one's, for which a stage that does not fence in evaluate() waits here.
  virtual void load(std::int64_t micro, const BatchView&) = 0;
  // A forward pass over the tokens of the evaluation. The last stage returns the sum of their losses (fences), the
  // others return 0.
  virtual double evaluate() = 0;
  // Of the last stage, after that: (N), and (V) of one row of logits. They fence.
  virtual void token_losses(float* host) = 0;
  virtual void logits(int row, float* host) = 0;
  // Of a stage that is the whole model, which must outlive it.
  virtual std::unique_ptr<TokenDecoder> make_decoder(const DecoderOptions&) = 0;

  virtual void initialise(std::uint64_t seed) = 0;              // weights as functions of (seed, name, index)
  virtual std::vector<StateField> model_fields() const = 0;     // "/model/...", that this rank keeps
  virtual std::vector<std::string> formed_weights() const = 0;  // in another form than dense, by their dense names
  virtual void set_dense(const std::string& formed, const float* host) = 0;  // one of these, whole. Fences
  virtual void weights_changed() = 0;  // they were written, on all ranks: rounds, sends and waits
  // Between a field of the memory that this rank computes in and host memory of its size. They fence.
  virtual void copy_to_host(const StateField&, void* host) const = 0;
  virtual void copy_from_host(const StateField&, const void* host) const = 0;

  // For benchmarks: matrix products of the passes since the last call.
  virtual void time_products(bool on) = 0;
  virtual ProductCount take_products() = 0;
};

// What gradients are multiplied by: those of the layers' projections, and the rest.
struct ClipScales {
  double projections = 1, rest = 1;
};

// How late the gradient of an update was.
struct StageDelay {
  double updates = 0;            // between the weights that its forward pass used and those that it updates
  double moved = 0, weight = 0;  // of those weights, as WeightDrift, in one of metrics.every updates; NaN: the older
                                 // ones are not kept
};

// What forward passes waited for weights, backward passes spent on sums of gradients, and updates on matrices that
// travel; and what updates before the last one took beyond their call: a lone rank's device goes on with them under the
// first passes of the next step.
struct StageSeconds {
  double gather = 0, reduce = 0, homes = 0, update = 0;
};

// Exchanges that a step starts on this rank, by what they carry, and sums of an update over tensor-parallel ranks.
struct StageExchangeCount {
  std::int64_t gradients = 0, weights = 0, homes = 0, sums = 0;
};

// Training as well: first what the actions of a step ask for, in its order; then what a run begins and goes on with;
// then what it tells of itself.
class PipelineStage : public virtual ForwardStage {
 public:
  // All that the actions of an update will receive, whose first micro-batch is `first`: forwards of micro-batches begin
  // to end - 1, a backward of each of the update's.
  virtual void expect_messages(std::int64_t first, std::int64_t begin, std::int64_t end) = 0;
  // On a device: the receive of a message to this stage starts, in the one order of all ranks (receive_order.hpp).
  virtual void start_receive(PipelineReceive::What, std::int64_t micro) = 0;
  virtual void forward(std::int64_t micro) = 0;
  // Of a stage whose backward passes are in two parts: the first of them, which backward_weight follows.
  virtual void backward(std::int64_t micro, double gradient_scale) = 0;
  virtual void backward_weight(std::int64_t micro) = 0;
  // After the last backward pass of an update: gradients are complete where they are owned.
  virtual void finish_gradients() = 0;
  // Then sums of squares by tensor of the whole stage, and after them the flag of weights that are not finite. losses:
  // of all micro-batches of the step, complete on return where the stage is the last. Equal on all ranks of the stage.
  virtual std::span<const double> sum(std::span<double> losses) = 0;
  // Update number t, of weights that have seen t - 1.
  virtual void update(std::int64_t t, double factor, const ClipScales&) = 0;
  virtual void withhold() = 0;                  // the weights stay as they are, one version on
  virtual const StageDelay& delay() const = 0;  // of the last update
  virtual void complete() = 0;                  // before the host waits for the space
  virtual void finish_gather() = 0;             // all weights are there
  virtual void synchronise() = 0;               // replicas that drift are equal until the next update

  // The weights are those after so many updates, of which delays see those from `origin` on.
  virtual void start_at(std::int64_t updates, std::int64_t origin) = 0;
  // The weights are there: what corrections of the delay know of the past is nothing, or was read.
  virtual void start_corrections(bool read) = 0;
  // What passes to come will read of the past, between updates, and that it was read. in_flight: passes are under way;
  // reading: fields too that another rank saves.
  virtual std::vector<StateField> in_flight_fields(bool in_flight, bool reading) const = 0;
  virtual void restored() = 0;
  // Forward passes that went ahead are forgotten, here and on the way here, and delays start over.
  virtual void drop_in_flight() = 0;

  virtual std::vector<StateField> optimizer_fields() const = 0;  // that this rank keeps
  virtual OptimizerControl& optimizer_control() = 0;
  virtual StageSeconds take_seconds() = 0;  // since the last call
  virtual CoherenceCount take_coherence() = 0;
  virtual StageExchangeCount exchange_count() const = 0;
};

}  // namespace sestina
