// One stage of a run on this rank, with all that hangs on it: what its ranks exchange, links to its neighbours, slots
// of the micro-batches in flight, and the older versions of its weights. Its three actions, forward, backward and
// update, are what the executor's lists are made of. Micro-batches are numbered on through the run.
#pragma once
#include <memory>
#include <vector>

#include "core/slot_pool.hpp"
#include "core/weight_versions.hpp"
#include "parallel/plan/pipeline_schedule.hpp"
#include "parallel/step/link.hpp"
#include "parallel/step/stage_exchanges.hpp"

namespace sestina {

template <class Exec, class T>
class StageRun {
 public:
  // in, out: links to the stages before and behind, null at the ends of the pipeline. groups null: forward passes
  // alone. All references must outlive it.
  StageRun(const Exec&, const Options&, const StagePlan&, const StagePlace&, const ModelPart&, const PassSetting&,
           const RankLayout&, GroupOps<Exec>*, StageGroups<Exec>* groups, Link<Exec, T>* in, Link<Exec, T>* out,
           Trace*);

  void forward(std::int64_t micro, const TokenSlot<Exec>&);
  // Of a stage whose backward passes are in two parts: the first of them, which backward_weight follows.
  void backward(std::int64_t micro, const TokenSlot<Exec>&, double gradient_scale);
  void backward_weight(std::int64_t micro);
  // Update number t, of weights that have seen t - 1.
  void update(std::int64_t t, double factor, double gradient_scale);
  void withhold() { ++updates_; }  // the weights stay as they are, one version on

  // A forward pass at the newest weights in a place of its own; the last stage computes the losses of its tokens, and
  // their sum is returned (fences), else 0.
  double evaluate(const TokenSlot<Exec>&);
  Activations<Exec, T>& evaluation_slot();

  // After so many updates, of which delays see those from `origin` on.
  void start_at(std::int64_t updates, std::int64_t origin) {
    updates_ = updates;
    place_.origin = origin;
  }
  // What passes to come will read of the past, between updates: older weights, and without a stash the activations that
  // went up and (saved) the slots. Rows are those of data-parallel ranks. reading: those too that another rank saves.
  std::vector<StateField> in_flight_fields(const ProcessGrid&, bool reading) const;
  void restored() {  // they were read
    if (in_) in_->restored(in_flight_end(place_.ahead_before));
  }
  std::int64_t updates() const { return updates_; }
  const StagePlace& place() const { return place_; }
  const StagePlan& plan() const { return plan_; }
  Stage<Exec, T>& stage() { return stage_; }
  const Stage<Exec, T>& stage() const { return stage_; }
  StageExchanges<Exec, T>& exchanges() { return *exchanges_; }
  const StageExchanges<Exec, T>& exchanges() const { return *exchanges_; }
  std::vector<StateField> model_fields() const {
    return exchanges_ ? exchanges_->model_fields() : stage_.model_fields();
  }
  void weights_changed();

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
  // Behind the last micro-batch of which a stage that is so far ahead has done the forward pass. Nothing crosses a
  // drain.
  std::int64_t in_flight_end(int ahead) const;
  int in_update(std::int64_t micro) const { return static_cast<int>(micro % place_.micros); }
  const Weights<Exec, T>& weights_of(std::int64_t version) const {
    return versions_.depth() == 0 || version == updates_ ? stage_.weights() : versions_.of(version);
  }
  void pass(const Weights<Exec, T>&, Activations<Exec, T>&, const TokenSlot<Exec>&);
  const Weights<Exec, T>& prepare_backward(std::int64_t micro, const TokenSlot<Exec>&, Activations<Exec, T>&);
  void hand_down(std::int64_t micro, const Activations<Exec, T>&);

  Exec exec_;
  StagePlan plan_;
  StagePlace place_;
  Stage<Exec, T> stage_;
  std::unique_ptr<StageExchanges<Exec, T>> exchanges_;  // null: forward passes alone
  WeightVersions<Exec, T> versions_;
  SlotPool<Activations<Exec, T>> slots_;
  Matrix<T, Exec> own_output_;                        // where the output of a forward pass done again goes
  std::unique_ptr<Activations<Exec, T>> evaluation_;  // of an asynchronous stage: its slots stay as they are
  Link<Exec, T>*in_, *out_;
  Hooks hooks_;
  std::int64_t updates_ = 0;
};

}  // namespace sestina
