// One stage of a model on this rank: its weights, links to its neighbours, and forward passes through it at the newest
// weights. Training adds the rest (stage_run.hpp).
#pragma once
#include <memory>
#include <vector>

#include "core/slot_pool.hpp"
#include "core/stage.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/plan/pipeline_schedule.hpp"
#include "parallel/stage/link.hpp"

namespace sestina {

// What a stage exchanges with others; null where there is nothing.
template <class Exec, class T>
struct StageLinks {
  Link<Exec, T>*in = nullptr, *out = nullptr;  // to the stages before and after
  Tie<Exec, T>* tie = nullptr;                 // of the first and of the last
};

// What a stage is on this rank.
template <class Exec, class T>
struct StageParts {
  StagePlan plan;
  StagePlace place;
  RankLayout layout;
  StageLinks<Exec, T> links;
};

template <class Exec, class T>
class StageForward {
 public:
  // group: tensor-parallel. training: with room for gradients. All references must outlive it.
  StageForward(const Exec&, const StageParts<Exec, T>&, const ModelPart&, const PassOptions&, GroupOps<Exec>* group,
               bool training = false);
  virtual ~StageForward() = default;
  StageForward(const StageForward&) = delete;
  StageForward& operator=(const StageForward&) = delete;

  // A forward pass in a place of its own; the last stage computes the losses of its tokens, and their sum is returned
  // (fences), else 0.
  double evaluate(const TokenSlot<Exec>&);
  Activations<Exec, T>& evaluation_slot();
  virtual std::vector<StateField> model_fields() const { return stage_.model_fields(); }
  virtual void weights_changed();

  const StagePlace& place() const { return place_; }
  const StagePlan& plan() const { return plan_; }
  Stage<Exec, T>& stage() { return stage_; }
  const Stage<Exec, T>& stage() const { return stage_; }

 protected:
  virtual BlockHooks& hooks() { return no_hooks_; }
  // Tied embeddings, of a stage at either end of several.
  bool sends_head() const { return tie_ && place_.number == 0; }
  bool receives_head() const { return tie_ && stage_.is_last(); }
  void send_head(const Weights<Exec, T>&, std::int64_t minibatch);

  Exec exec_;
  StagePlan plan_;
  StagePlace place_;
  Stage<Exec, T> stage_;
  SlotPool<Activations<Exec, T>> slots_;
  Link<Exec, T>*in_, *out_;
  Tie<Exec, T>* tie_;
  std::int64_t updates_ = 0;   // that the weights have seen
  std::int64_t head_of_ = -1;  // of these, in the table that was last sent for an evaluation

 private:
  GroupOps<Exec>* group_;                             // tensor-parallel; null: none
  std::unique_ptr<Activations<Exec, T>> evaluation_;  // of an asynchronous stage: its slots stay as they are
  BlockHooks no_hooks_;
};

}  // namespace sestina
