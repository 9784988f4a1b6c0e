// The stages of this rank as the plan deals them out, and forward passes through them: for evaluations, scores and
// generated text. What trains (executor.hpp) is this and more.
#pragma once
#include <memory>
#include <vector>

#include "parallel/plan/make_plan.hpp"
#include "parallel/stage/stage_exchanges.hpp"
#include "parallel/stage/stage_forward.hpp"

namespace sestina {

template <class Exec, class T>
class Evaluator {
 public:
  // Weights for forward passes alone, batches as the options say; data-parallel ranks hold the same.
  Evaluator(const Exec&, const PlanInput&, const PassOptions&, Communicator& world);
  virtual ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // Sum of the token losses of a micro-batch at the newest weights, on ranks of the last stage; else 0.
  double loss(const BatchView&);
  void token_losses(Acc<T>* host);    // (N), of the last loss(), on ranks of the last stage; fences
  void logits(int row, float* host);  // (V) of row b * T + t of the last loss(); fences. Of one rank

  std::vector<StateField> model_fields() const;  // master weights ("/model/...") that this rank keeps
  virtual void weights_changed();                // they were written, on all ranks: rounds, sends and waits

  const Exec& exec() const { return exec_; }
  const PassOptions& options() const { return options_; }
  const ModelConfig& config() const { return plan_.input.model; }  // of the whole model
  const ProcessGrid& grid() const { return groups_.grid; }
  Communicator& pipeline() { return *pipeline_; }  // ranks with the same shards and samples, by their stages
  const BatchShare& share() const { return share_; }
  const Plan& plan() const { return plan_; }
  std::size_t stage_count() const { return stages_.size(); }  // on this rank
  int stage_number(std::size_t i) const { return static_cast<int>(stages_[i]->place().number); }
  bool has_last_stage() const { return stages_.back()->place().number + 1 == plan_.pp; }
  Stage<Exec, T>& stage(std::size_t i = 0) { return stages_[i]->stage(); }
  typename TensorGroup<Exec>::Count take_group_count() { return groups_.tensor->take_count(); }

 protected:
  // Without its stages, which are made by what trains. The trace, if any, must outlive it.
  Evaluator(const Exec&, const Plan&, Communicator& world, Trace*);
  std::vector<int> own_stages() const;
  StageParts<Exec, T> parts_of(int stage) const;

  Exec exec_;
  Plan plan_;
  Trace* trace_ = nullptr;  // null: none
  Communicator& world_;
  std::unique_ptr<Communicator> stage_world_, pipeline_;  // ranks of this one's stages; one of each pipeline rank
  StageGroups<Exec> groups_;
  BatchShare share_;
  PassOptions options_;
  PipelineOptions pipe_;
  PipelineSchedule schedule_;
  ModelPart part_;
  std::vector<std::unique_ptr<StageForward<Exec, T>>> stages_;

 private:
  void make_groups(int dp);
  void make_links(int micros);
  std::vector<std::unique_ptr<Link<Exec, T>>> links_;  // by boundary
  std::unique_ptr<Tie<Exec, T>> tie_;                  // null: no tied embeddings, or one stage
  std::unique_ptr<TokenSlot<Exec>> tokens_;
};

}  // namespace sestina
