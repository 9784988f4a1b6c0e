// The one interpreter of a step: it runs the plan's actions of an update (parallel/plan/pipeline_schedule.hpp) on the
// stages of this rank. One rank, many, one stage, many: all take this path, in training, evaluation, benchmarks and
// tests.
//
// A step is three calls. backward(): passes of all micro-batches, and sums (loss and norm are known to all ranks), on
// which they decide. update(): of all stages; weights travel under the next forward. exchange(): what the ranks tell
// each other of it. In asynchronous 1F1B each stage updates in the passes, when it has its gradient; nobody waits, and
// sums, those of the minibatch whose gradient it was, are known when the step is finished, some updates later. No
// Kokkos.
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

// What an asynchronous pipeline in flight belongs to.
struct PipelineState {
  std::vector<int> ahead;   // by stage, in micro-batches
  std::vector<int> layers;  // first one of each stage
  int micros = 0;           // of an update
  std::string stash, correction;
  std::int64_t origin = 0;                     // updates at which its delays began
  bool started = false;                        // something is in flight
  int replicas = 0;                            // data-parallel ranks with older weights of their own, 0: none has
  int shards = 0;                              // tensor-parallel ranks with activations of their own, 0: none has
  std::vector<double> norms;                   // of the last minibatches, where they clip later ones
  bool fits(const PipelineState& now) const {  // what is in flight can go on there
    return ahead == now.ahead && layers == now.layers && micros == now.micros && stash == now.stash &&
           correction == now.correction && replicas == now.replicas && shards == now.shards;
  }
};

class Executor : public Evaluator {
 public:
  // world.size() must be that of the plan: dp * tp * P. The trace, if any, must outlive it.
  Executor(const StageMaker&, const Plan&, Communicator& world, Trace* = nullptr);

  void initialise(std::uint64_t seed);
  // The weights are those after so many updates; an asynchronous pipeline is empty, and its delays begin here.
  void start_at(std::int64_t updates);
  // Between updates: what an asynchronous pipeline (none: another) has in flight, as state, and how to go on with it.
  // resume: whether it fits this pipeline, whose in_flight_fields(true) are then to be read before the next step; else
  // start_at.
  std::optional<PipelineState> pipeline_state() const;
  std::vector<StateField> in_flight_fields(bool reading) const;
  bool resume(std::int64_t updates, const PipelineState&);
  // Between updates, with all of them finished: an asynchronous pipeline is empty, and its delays start over; data are
  // to go on after the last update.
  void drain(std::int64_t updates);
  // The passes of update number t, at a factor of the peak learning rates. interrupted: asked between micro-batches on
  // one rank with one stage, whose step is dropped where it says so.
  Passes backward(std::int64_t t, double factor, Batches&, const std::function<bool()>& interrupted = {});
  void update();  // where backward() gave sums
  // Tells all ranks of this step: sums where they are not known, and these parts of report(), which is filled in
  // before. Returns the steps of which all ranks have told, this one or that of lag() updates before, until the next
  // call. Once for each step; in the same order on all ranks.
  std::span<const FinishedStep> exchange(ReportParts told = {});
  std::span<const FinishedStep> finish_steps();      // all that are not finished yet; waits for all ranks
  RankReport& report() { return exchange_.mine(); }  // of this rank and this step
  PhaseClock& clock() { return clock_; }             // whoever takes the steps starts it
  int lag() const { return exchange_.lag(); }        // updates until a step is finished
  // Of the last step that was not dropped. Asynchronous: of the stages of this rank alone.
  const StepSums& sums() const { return sums_; }
  double stage_norm(std::size_t i) const { return norm_of(*runs_[i]); }  // the same, of stage i of this rank
  double group_norm(std::size_t i, bool projections) const { return norm_of(*runs_[i], projections); }

  void finish_gather();  // all weights are there
  // Replicas that drift are equal from here to the next update: before what is saved or evaluated.
  void synchronise();
  CoherenceCount take_coherence();  // of this rank's stages, since the last call

  StageSeconds take_seconds();  // the same

  std::vector<StateField> optimizer_fields() const;  // that this rank keeps
  std::vector<StateField> fields() const;            // with the master weights
  void weights_changed() override;
  std::vector<std::int64_t> rank_costs() const;  // planned, by rank of the world

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
  void sum_stage(PipelineStage&);
  void complete_sums();
  void compute_fresh();
  double norm_of(const PipelineStage&) const;
  double norm_of(const PipelineStage&, bool projections) const;
  ClipScales clip_scales(const PipelineStage&, double clip, std::optional<double> lagged) const;
  void update_stage(PipelineStage&);

  StepExchange exchange_;
  bool updates_in_passes_;  // asynchronous
  double scale_;            // of the gradients: 1 / tokens of the global batch
  PhaseClock clock_;
  std::int64_t t_ = 0;  // of the step under way
  double factor_ = 1;
  std::unique_ptr<FreshGradients> fresh_;   // null: not compared
  std::vector<double> cosines_;             // by stage of this rank, of the last update
  bool compares_ = false;                   // in this update
  PipelineStages runs_;                     // the stages
  std::vector<std::size_t> run_of_stage_;   // by stage, where it is one of this rank's
  std::vector<std::size_t> first_tensor_;   // by stage, and one after the last: places in whole_
  std::vector<Action> ahead_;               // forwards that an asynchronous pipeline starts with, of all ranks
  ReceiveLists receives_, receives_ahead_;  // of the actions of an update, and of those
  std::vector<double> losses_, whole_;      // whole_: squares by tensor, the flag, losses
  std::int64_t first_micro_ = 0;            // of the next update
  std::int64_t origin_ = 0;
  bool started_ = false, restored_ = false;
  bool resumed_ = false;  // what corrections know of the past was read
  StepSums sums_;
};

}  // namespace sestina
