// One stage of a model on this rank: its weights, links to its neighbours, and forward passes through it at the newest
// weights. Training adds the rest (stage_run.hpp).
#pragma once
#include <memory>
#include <vector>

#include "core/slot_pool.hpp"
#include "core/stage.hpp"
#include "parallel/stage/stages_of.hpp"

namespace sestina {

template <class Exec, class T>
class StageForward : public virtual ForwardStage {
 public:
  using Shared = std::shared_ptr<SharedParts<Exec, T>>;
  // training: the stage has room for gradients.
  StageForward(const Exec&, const StageParts&, const RankParts&, const Shared&, bool training = false);

  const StagePlace& place() const override { return place_; }
  const StagePlan& plan() const override { return plan_; }
  void load(std::int64_t micro, const BatchView& batch) override {
    if (micro == ForwardStage::evaluation && !stage_.is_last()) exec_.fence("evaluation");
    shared_->tokens(micro).load(exec_, batch);
  }
  double evaluate() override;
  void token_losses(float* host) override;
  void logits(int row, float* host) override;
  std::unique_ptr<TokenDecoder> make_decoder(const DecoderOptions&) override;
  void initialise(std::uint64_t seed) override { stage_.initialise(seed); }
  std::vector<StateField> model_fields() const override { return stage_.model_fields(); }
  std::vector<std::string> formed_weights() const override;
  void set_dense(const std::string& formed, const float* host) override { stage_.set_dense(formed, host); }
  void weights_changed() override;
  void copy_to_host(const StateField& field, void* host) const override { sestina::copy_to_host(exec_, field, host); }
  void copy_from_host(const StateField& field, const void* host) const override {
    sestina::copy_from_host(exec_, field, host);
  }
  void time_products(bool on) override { stage_.model().gemm().time_products(on); }
  ProductCount take_products() override;

  Activations<Exec, T>& evaluation_slot();
  Stage<Exec, T>& stage() { return stage_; }
  const Stage<Exec, T>& stage() const { return stage_; }
  SharedParts<Exec, T>& shared() { return *shared_; }

 protected:
  virtual BlockHooks& hooks() { return no_hooks_; }
  // True for the stages at the ends of a pipeline of several, where embeddings are tied.
  bool sends_head() const { return tie_ && place_.number == 0; }
  bool receives_head() const { return tie_ && stage_.is_last(); }
  void send_head(const Weights<Exec, T>&, std::int64_t minibatch);
  // Called after a forward pass of an evaluation: sends the head, or receives it, where it is newer than that of the
  // last one.
  void exchange_head();

  Exec exec_;
  StagePlan plan_;
  StagePlace place_;
  ModelConfig whole_;  // the model of all ranks
  Shared shared_;
  Stage<Exec, T> stage_;
  SlotPool<Activations<Exec, T>> slots_;
  Link<Exec, T>*in_, *out_;    // links to the stages before and after; null: none
  Tie<Exec, T>* tie_;          // the tie of the first and the last stage; null: none
  std::int64_t updates_ = 0;   // updates that the weights have seen
  std::int64_t head_of_ = -1;  // updates in the table that was last sent for an evaluation

 private:
  std::unique_ptr<Activations<Exec, T>> evaluation_;  // for an asynchronous stage, whose slots stay as they are
  BlockHooks no_hooks_;
};

}  // namespace sestina
