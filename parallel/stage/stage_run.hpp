// One stage of a run that trains on this rank, with all that hangs on it: what its ranks exchange, slots of the
// micro-batches in flight, and the older versions of its weights. Its three actions, forward, backward and
// update, are what the executor's lists are made of. Micro-batches are numbered on through the run.
#pragma once
#include <memory>
#include <vector>

#include "core/delay_correction.hpp"
#include "core/weight_drift.hpp"
#include "core/weight_versions.hpp"
#include "parallel/stage/stage_exchanges.hpp"
#include "parallel/stage/stage_forward.hpp"

namespace sestina {

// What gradients are multiplied by: those of the layers' projections, and the rest.
struct ClipScales {
  double projections = 1, rest = 1;
};

// How late the gradient of an update was.
struct StageDelay {
  double updates = 0;  // between the weights that its forward pass used and those that it updates
  WeightDrift drift;   // of those weights, in one of metrics.every updates; NaN: the older ones are not kept
};

template <class Exec, class T>
class StageRun final : public StageForward<Exec, T> {
  using Base = StageForward<Exec, T>;

 public:
  // All references must outlive it.
  StageRun(const Exec&, const PlanInput&, const StageParts<Exec, T>&, const ModelPart&, const PassOptions&,
           StageGroups<Exec>&, Trace*);

  void forward(std::int64_t micro, const TokenSlot<Exec>&);
  // Of a stage whose backward passes are in two parts: the first of them, which backward_weight follows.
  void backward(std::int64_t micro, const TokenSlot<Exec>&, double gradient_scale);
  void backward_weight(std::int64_t micro);
  // Update number t, of weights that have seen t - 1.
  void update(std::int64_t t, double factor, const ClipScales&);
  void withhold();  // the weights stay as they are, one version on
  // After the last backward pass of an update: gradients are complete where they are owned.
  void finish_gradients();

  // After so many updates, of which delays see those from `origin` on.
  void start_at(std::int64_t updates, std::int64_t origin) {
    updates_ = updates;
    place_.origin = origin;
  }
  // The weights are there: what corrections know of the past is nothing, or was read.
  void start_corrections(bool read);
  // Between updates: forward passes that went ahead are forgotten, here and on the way here, and delays start over.
  void drop_in_flight();
  // What passes to come will read of the past, between updates: older weights, and without a stash, where passes are in
  // flight, the activations that went up and (saved) the slots. Rows are those of data-parallel ranks. reading: those
  // too that another rank saves. Older weights of replicas that drifted are those of each data-parallel rank: its
  // backward passes to come belong to forward passes under them. A synchronisation is of the newest weights, which no
  // pass has read yet.
  std::vector<StateField> in_flight_fields(const ProcessGrid&, bool in_flight, bool reading) const;
  // Of the update whose first micro-batch is `first`: forwards of micro-batches begin to end - 1, a backward of each.
  void expect_messages(std::int64_t first, std::int64_t begin, std::int64_t end);
  void restored() {  // they were read
    if (in_) in_->restored(in_flight_end(place_.ahead_before));
  }
  std::int64_t updates() const { return updates_; }
  const StageDelay& delay() const { return delay_; }  // of the last update
  StageExchanges<Exec, T>& exchanges() { return exchanges_; }
  const StageExchanges<Exec, T>& exchanges() const { return exchanges_; }
  std::vector<StateField> model_fields() const override { return exchanges_.model_fields(); }
  void weights_changed() override;

 private:
  // Around the blocks of a pass.
  struct Hooks final : BlockHooks {
    Hooks(StageRun& r, Trace* trace) : run(r), span(trace) {}
    void before_forward(int block) override;
    void before_backward(int block) override { span.begin("backward", block); }
    void after_backward_input(int block) override {
      run.stage_.accumulate(block, micro, Stage<Exec, T>::Part::input);
      span.end();
    }
    void after_backward(int block) override;
    StageRun& run;
    OpenSpan span;
    int micro = 0;          // in its update
    bool training = false;  // an evaluation shows no blocks
  };
  std::int64_t in_flight_end(int ahead) const { return place_.in_flight_end(updates_, ahead); }
  int in_update(std::int64_t micro) const { return static_cast<int>(micro % place_.micros); }
  const Weights<Exec, T>& weights_of(std::int64_t version) const {
    const bool newest = version == updates_ && !correction_.predicts();
    return versions_.depth() == 0 || newest ? stage_.weights() : versions_.of(version);
  }
  void before_update();
  void note_delay();
  void after_update(std::int64_t t);
  void pass(const Weights<Exec, T>&, Activations<Exec, T>&, const TokenSlot<Exec>&);
  const Weights<Exec, T>& prepare_backward(std::int64_t micro, const TokenSlot<Exec>&, Activations<Exec, T>&);
  void hand_down(std::int64_t micro, const Activations<Exec, T>&);
  void end_backward(std::int64_t micro);
  void receive_head(std::int64_t micro);
  void begin_embedding_gradient(std::int64_t micro);

  using Base::exec_, Base::plan_, Base::place_, Base::stage_, Base::slots_, Base::in_, Base::out_, Base::tie_;
  using Base::updates_, Base::head_of_, Base::sends_head, Base::receives_head, Base::send_head;
  BlockHooks& hooks() override { return hooks_; }

  StageExchanges<Exec, T> exchanges_;
  WeightVersions<Exec, T> versions_;
  std::unique_ptr<DriftMeter<Exec, T>> meter_;  // null: no older weights to look back at
  DelayCorrection<Exec, T> correction_;
  Matrix<T, Exec> own_output_;  // where the output of a forward pass done again goes
  Hooks hooks_;
  StageDelay delay_;
  std::int64_t drift_every_;  // updates; 0: a synchronous pipeline
};

}  // namespace sestina
