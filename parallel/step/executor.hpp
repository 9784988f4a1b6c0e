// The one interpreter of a step: it runs the plan's actions of an update (parallel/plan/pipeline_schedule.hpp) on the
// stages of this rank. One rank or many, one stage or many: all take this path, in training, evaluation, benchmarks and
// tests.
//
// A step is three calls. backward() runs the passes of all micro-batches and returns sums (loss and norm, known to all
// ranks), on which the ranks decide. update() updates all stages; weights travel under the next forward pass.
// exchange() tells all ranks of the step. In asynchronous 1F1B each stage updates within the passes, as soon as it has
// its gradient; no rank waits, and the sums of the minibatch with that gradient are known when the step is finished,
// some updates later. No Kokkos.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/plan/make_plan.hpp"
#include "parallel/step/evaluator.hpp"
#include "parallel/step/receive_order.hpp"
#include "parallel/step/step_exchange.hpp"

namespace sestina {

class Pager;

// The facts that must be the same for an asynchronous pipeline in flight to go on after a resume.
struct PipelineState {
  std::vector<int> ahead;   // by stage, micro-batches
  std::vector<int> layers;  // the first layer of each stage
  int micros = 0;           // micro-batches of an update
  std::string stash, correction;
  std::int64_t origin = 0;                     // number of updates at which the delays began
  bool started = false;                        // something is in flight
  int replicas = 0;                            // data-parallel ranks with older weights of their own; 0: none
  int shards = 0;                              // tensor-parallel ranks with activations of their own; 0: none
  std::vector<double> norms;                   // those of the last minibatches, where they clip later ones
  bool fits(const PipelineState& now) const {  // true where what is in flight can go on in `now`
    return ahead == now.ahead && layers == now.layers && micros == now.micros && stash == now.stash &&
           correction == now.correction && replicas == now.replicas && shards == now.shards;
  }
};

class Executor : public Evaluator {
 public:
  // world.size() must be that of the plan, dp * tp * P with P pipeline ranks. The trace, if any, must outlive the
  // executor.
  Executor(const StageMaker&, const Plan&, Communicator& world, Trace* = nullptr);

  void initialise(std::uint64_t seed);
  // Lets state of the optimizers lie with the pager between its uses, from its open() on. Backward passes tell it that
  // an update follows.
  void page_to(const std::shared_ptr<Pager>&);
  // Says that the weights are those after so many updates; an asynchronous pipeline is empty, and its delays begin
  // here.
  void start_at(std::int64_t updates);
  // Called between updates: what an asynchronous pipeline has in flight, as state (none for other pipelines), and how
  // to go on with it. resume returns true where that fits this pipeline: its in_flight_fields(true) are then to be read
  // before the next step; where it returns false, call start_at.
  std::optional<PipelineState> pipeline_state() const;
  std::vector<StateField> in_flight_fields(bool reading) const;
  bool resume(std::int64_t updates, const PipelineState&);
  // Called between updates, with all of them finished: empties an asynchronous pipeline, whose delays start over; data
  // are to go on after the last update.
  void drain(std::int64_t updates);
  // Runs the passes of update number t, at a factor of the peak learning rates. interrupted is asked between
  // micro-batches on one rank with one stage; with parallel.overlap_updates instead once by all ranks, before the first
  // matrix is updated. Where it returns true the step is dropped.
  Passes backward(std::int64_t t, double factor, Batches&, const std::function<bool()>& interrupted = {});
  void update();    // called where backward() gave sums
  void withdraw();  // called in its place: this update is not made, or only that of matrices which had finite gradients
  // Tells all ranks of this step: sums where they are not known, and these parts of report(), which is filled in
  // before. Returns the steps of which all ranks have told, this one or that of lag() updates before; they are valid
  // until the next call. It is called once for each step, in the same order on all ranks.
  std::span<const FinishedStep> exchange(ReportParts told = {});
  std::span<const FinishedStep> finish_steps();      // finishes all that are not finished yet; waits for all ranks
  RankReport& report() { return exchange_.mine(); }  // that of this rank and this step
  PhaseClock& clock() { return clock_; }             // the caller of the steps starts it
  int lag() const { return exchange_.lag(); }        // updates until a step is finished
  // Sums of the last step that was not dropped; with an asynchronous pipeline, of the stages of this rank alone.
  const StepSums& sums() const { return sums_; }
  double gradient_scale() const { return scale_; }
  // Returns the last tensor of the whole model whose gradient in the last step was not finite; empty: there was none.
  std::string nonfinite_gradient() const;
  double stage_norm(std::size_t i) const { return norm_of(*runs_[i]); }  // the norm of stage i of this rank
  double group_norm(std::size_t i, bool projections) const { return norm_of(*runs_[i], projections); }

  void finish_gather();  // waits until all weights are there
  // Makes drifting replicas equal until the next update; called before weights are saved or evaluated.
  void synchronise();
  CoherenceCount take_coherence();  // counts of this rank's stages since the last call

  StageSeconds take_seconds();  // seconds of this rank's stages since the last call

  void start_averages();  // see PipelineStage
  void swap_average();

  std::vector<StateField> optimizer_fields() const;  // fields that this rank keeps
  std::vector<StateField> fields() const;            // these and the master weights
  void weights_changed() override;
  std::vector<std::int64_t> rank_costs() const;  // planned costs, by rank of the world

  PipelineStage& run(std::size_t i = 0) { return *runs_[i]; }
  const PipelineStages& runs() const { return runs_; }
  StageExchangeCount exchanges_per_step() const;

 private:
  PipelineStage& run_of(int stage) { return *runs_[run_of_stage_[static_cast<std::size_t>(stage)]]; }

  bool run_actions(Batches&, const std::function<bool()>& interrupted);
  void run_ahead(Batches&);
  void expect_messages();
  void start_receives(const std::vector<PipelineReceive>&);
  bool is_in_segment(const StagePlace&, std::int64_t micro) const;
  bool load(const StagePlace&, std::int64_t micro, Batches&);
  void forward(const Action&, Batches&);
  void update_matrices();
  void sum_stage(PipelineStage&);
  void complete_sums();
  void compute_fresh();
  double norm_of(const PipelineStage&) const;
  double norm_of(const PipelineStage&, bool projections) const;
  ClipScales clip_scales(const PipelineStage&, double clip, std::optional<double> lagged);
  void update_stage(PipelineStage&);

  std::shared_ptr<Pager> pager_;  // null: all state is always in memory
  StepExchange exchange_;
  bool updates_in_passes_;  // true in an asynchronous pipeline
  bool overlaps_;           // parallel.overlap_updates
  double scale_;            // the factor of the gradients: 1 / tokens of the global batch
  PhaseClock clock_;
  std::int64_t t_ = 0;  // number of the update under way
  double factor_ = 1;
  std::unique_ptr<FreshGradients> fresh_;   // null: not compared
  std::vector<double> cosines_;             // by stage of this rank, those of the last update
  bool compares_ = false;                   // compares gradients in this update
  PipelineStages runs_;                     // the stages
  std::vector<std::size_t> run_of_stage_;   // for each stage of this rank its number in runs_
  std::vector<std::size_t> first_tensor_;   // by stage, and one after the last: its first place in whole_
  std::vector<Action> ahead_;               // forwards that an asynchronous pipeline starts with, of all ranks
  ReceiveLists receives_, receives_ahead_;  // receives of an update's actions, and of ahead_
  std::vector<double> losses_, whole_;      // whole_: squares by tensor, the flag, losses of the whole pipeline
  std::vector<double> clips_;               // by tensor of the stage that is updated
  std::int64_t first_micro_ = 0;            // first micro-batch of the next update
  std::int64_t origin_ = 0;
  bool started_ = false, restored_ = false;
  bool resumed_ = false;  // the past that corrections know was read from a checkpoint
  StepSums sums_;
};

}  // namespace sestina
