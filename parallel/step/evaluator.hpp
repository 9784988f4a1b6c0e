// The stages of this rank as the plan deals them out, and forward passes through them, for evaluations, scores and
// generated text. The executor, which trains, is built on it (executor.hpp). No Kokkos.
#pragma once
#include <memory>
#include <vector>

#include "parallel/step/stage_maker.hpp"

namespace sestina {

class Evaluator {
 public:
  // Makes stages with weights for forward passes alone and batches as the options say; all data-parallel ranks hold the
  // same. world must outlive them.
  Evaluator(const StageMaker&, const PlanInput&, const PassOptions&, Communicator& world);
  virtual ~Evaluator() = default;
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // Returns the sum of the token losses of a micro-batch at the newest weights, on ranks of the last stage; else 0.
  double loss(const BatchView&);
  // Give values of the last loss() on ranks of the last stage: token losses (N), and logits (V) of row b * T + t of
  // this rank, for N tokens, a vocabulary of V, and position t of T in sequence b. They fence.
  void token_losses(float* host) { stages_.back()->token_losses(host); }
  void logits(int row, float* host) { stages_.back()->logits(row, host); }
  std::vector<StateField> model_fields() const;  // master weights ("/model/...") that this rank keeps
  virtual void weights_changed();                // after they were written on all ranks: rounds, sends, waits

  // Copy between a field of this rank and host memory of its size. They fence.
  void copy_to_host(const StateField& field, void* host) const { stages_.front()->copy_to_host(field, host); }
  void copy_from_host(const StateField& field, const void* host) const { stages_.front()->copy_from_host(field, host); }

  const PassOptions& options() const { return options_; }
  const ModelConfig& config() const { return plan_.input.model; }  // that of the whole model
  const ProcessGrid& grid() const { return groups_.grid; }
  Communicator& pipeline() { return *groups_.pipeline; }  // ranks with the same shards and samples, by their stages
  const BatchShare& share() const { return share_; }
  const Plan& plan() const { return plan_; }
  std::size_t stage_count() const { return stages_.size(); }  // stages on this rank
  int stage_number(std::size_t i) const { return stages_[i]->place().number; }
  bool has_last_stage() const { return stages_.back()->place().number + 1 == plan_.pp; }
  ForwardStage& stage(std::size_t i = 0) { return *stages_[i]; }

 protected:
  // Makes no stages: the executor makes them. The trace, if any, must outlive it.
  Evaluator(const StageMaker&, const Plan&, Communicator& world, Trace*);
  RankParts rank_parts();  // parts for the stages of this rank

  Plan plan_;
  Trace* trace_ = nullptr;  // null: none
  Communicator& world_;
  std::unique_ptr<Communicator> stage_world_;  // the ranks of this rank's stages; null: all ranks
  RankGroups groups_;
  BatchShare share_;
  PassOptions options_;
  PipelineOptions pipe_;
  PipelineSchedule schedule_;
  ModelPart part_;
  std::vector<std::unique_ptr<ForwardStage>> stages_;

 private:
  void make_expert_groups(bool device);
  void make_groups(int dp, bool on_device);
  void make_schedule_of(int micros);
  StageParts parts_of(int stage) const;
};

}  // namespace sestina
