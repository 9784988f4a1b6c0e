// One stage of a run that trains on this rank, with what belongs to it: the exchanges of its ranks, slots of the
// micro-batches in flight, and the older versions of its weights.
#pragma once
#include <memory>
#include <vector>

#include "core/delay.hpp"
#include "core/gradient_digests.hpp"
#include "core/model/formed_weights.hpp"
#include "core/model/pass_probe.hpp"
#include "parallel/stage/stage_exchanges.hpp"
#include "parallel/stage/stage_forward.hpp"

namespace sestina {

template <class Exec, class T>
class StageRun final : public StageForward<Exec, T>, public PipelineStage {
  using Base = StageForward<Exec, T>;

 public:
  StageRun(const Exec&, const StageParts&, const RankParts&, const typename Base::Shared&);

  void look_ahead(std::int64_t t, double factor) override { exchanges_.look_ahead(t, factor); }
  void look_back() override { exchanges_.look_back(); }
  void expect_messages(std::int64_t first, std::int64_t begin, std::int64_t end) override;
  void start_receive(PipelineReceive::What, std::int64_t micro) override;
  void forward(std::int64_t micro) override;
  void backward(std::int64_t micro, double gradient_scale) override;
  void backward_weight(std::int64_t micro) override;
  double update_matrices(std::int64_t t, double factor, double clip_norm) override {
    return exchanges_.update_matrices(t, factor * correction_.rate(t), clip_norm);
  }
  void finish_gradients() override;
  std::span<const double> sum(std::span<double> losses) override { return exchanges_.sum(losses, share_, updates_); }
  void update(std::int64_t t, double factor, const ClipScales&) override;
  void withhold() override;
  const StageDelay& delay() const override { return delay_; }
  void complete() override { exchanges_.complete(); }
  void finish_gather() override { exchanges_.finish_gather(); }
  void synchronise() override { exchanges_.synchronise(); }

  void start_at(std::int64_t updates, std::int64_t origin) override {
    updates_ = updates;
    place_.origin = origin;
  }
  void start_corrections(bool read) override;
  // Returns older weights, and without a stash, where passes are in flight, the activations that went up and (saved)
  // the slots. Rows are by data-parallel rank. Older weights of replicas that drifted are those of each data-parallel
  // rank: its backward passes to come belong to forward passes under them. A synchronisation is of the newest weights,
  // which no pass has read yet.
  std::vector<StateField> in_flight_fields(bool in_flight, bool reading) const override;
  void restored() override {
    if (in_) in_->restored(in_flight_end(place_.ahead_before));
    knows_rows_ = place_.stash != ParallelOptions::Stash::saved;
  }
  void drop_in_flight() override;

  void initialise(std::uint64_t seed) override;
  std::vector<StateField> model_fields() const override { return exchanges_.model_fields(); }
  void weights_changed() override;
  void start_averages() override { exchanges_.start_averages(); }
  void swap_average() override;
  std::vector<StateField> optimizer_fields() const override { return exchanges_.optimizer_fields(); }
  OptimizerControl& optimizer_control() override { return stage_.optimizer(); }
  StageSeconds take_seconds() override { return exchanges_.take_seconds(); }
  CoherenceCount take_coherence() override { return exchanges_.take_coherence(); }
  void look_for_nonfinite(bool on) override;
  std::optional<FirstBad> first_nonfinite() const override { return probe_ ? probe_->found() : std::nullopt; }
  void spoil_next_forward() override;
  double largest_score() const override { return exchanges_.largest_score(); }
  LargestLoad largest_load() const override { return exchanges_.largest_load(); }
  StageExchangeCount exchange_count() const override { return exchanges_.count(); }
  std::vector<UpdateRecord> update_records() const override;
  std::vector<RotationRecord> rotation_records() const override {
    return rotations_ ? rotations_->records() : std::vector<RotationRecord>();
  }

  std::vector<EarlyMerge> early_merges() const override { return early_merges_; }

  // For audits, between two updates of a synchronous pipeline: compute the micro-batch whose tokens are those of the
  // evaluation, at the newest weights. Its gradients lie in the place of a micro-batch's until the next one, and no
  // data-parallel rank hears of them. All stages run forward, then all of them back.
  void forward_again();
  void backward_again(double gradient_scale);
  // Where on, forgets digests of what passes compute between layers and keeps them until it is turned off.
  void keep_digests(bool on) { probe().keep_digests(on); }
  const std::vector<PassDigest>& digests() { return probe().digests(); }
  // Flips bits of the stream after an attention in forward passes of the flip's micro-batch; none: in none.
  void flip_in_forward(const std::optional<BitFlip>& flip) {
    if (flip || probe_) probe().flip_in_forward(flip);
  }
  // Tells of the gradients of each micro-batch, and of one computed again; null: nothing.
  void watch(GradientDigests<Exec, T>* digests) { watch_ = digests; }

  std::int64_t updates() const { return updates_; }
  StageExchanges<Exec, T>& exchanges() { return exchanges_; }
  const StageExchanges<Exec, T>& exchanges() const { return exchanges_; }

 private:
  // Called around the blocks of a pass.
  struct Hooks final : BlockHooks {
    Hooks(StageRun& r, Trace* trace) : run(r), span(trace) {}
    void before_forward(int block) override;
    void after_forward(int block) override {
      if (run.probe_ && training) run.probe_->after_forward(block);
    }
    void before_backward(int block) override {
      run.complete_for_experts();
      run.exchanges_.before_backward(block);
      span.begin("backward", block);
    }
    void after_backward_input(int block) override {
      if (run.probe_) run.probe_->after_backward(block, true, false);
      run.finish_part(block, micro, Stage<Exec, T>::Part::input);
      span.end();
    }
    void after_backward(int block) override;
    bool act() const override { return run.probe_ || run.watch_ || run.again_; }  // of the runs that record passes
    StageRun& run;
    OpenSpan span;
    const Weights<Exec, T>* weights = nullptr;  // those of the backward pass
    int micro = 0;                              // number in its update
    bool training = false;                      // an evaluation shows no blocks
  };
  std::int64_t in_flight_end(int ahead) const { return place_.in_flight_end(updates_, ahead); }
  int in_update(std::int64_t micro) const { return static_cast<int>(micro % place_.micros); }
  const Weights<Exec, T>& weights_of(std::int64_t version) const {
    const bool newest = version == updates_ && !correction_.predicts();
    return versions_.depth() == 0 || newest ? stage_.weights() : versions_.of(version);
  }
  void finish_part(int block, int micro, typename Stage<Exec, T>::Part);
  PassProbe<Exec, T>& probe();
  void complete_for_experts();
  void count_rows_again();
  void before_update();
  void note_delay();
  void after_update(std::int64_t t);
  void merge_early(std::int64_t t);
  void pass(const Weights<Exec, T>&, Activations<Exec, T>&, const TokenSlot<Exec>&);
  const Weights<Exec, T>& prepare_backward(std::int64_t micro, const TokenSlot<Exec>&, Activations<Exec, T>&);
  void hand_down(std::int64_t micro, const Activations<Exec, T>&);
  void end_backward(std::int64_t micro);
  void receive_head(std::int64_t micro);
  void begin_embedding_gradient(std::int64_t micro);

  using Base::exchange_head;
  using Base::exec_, Base::plan_, Base::place_, Base::shared_, Base::stage_, Base::slots_, Base::in_, Base::out_;
  using Base::tie_, Base::updates_, Base::head_of_, Base::sends_head, Base::receives_head, Base::send_head;
  BlockHooks& hooks() override { return hooks_; }

  BatchShare share_;
  StageExchanges<Exec, T> exchanges_;
  WeightVersions<Exec, T> versions_;
  std::unique_ptr<DriftMeter<Exec, T>> meter_;  // null: no older weights are kept
  DelayCorrection<Exec, T> correction_;
  Matrix<T, Exec> own_output_;  // the output of a forward pass that is done again
  Hooks hooks_;
  std::unique_ptr<PassProbe<Exec, T>> probe_;          // null: nobody looks at what passes compute
  std::unique_ptr<RotationMeter<Exec, T>> rotations_;  // null: nobody looks at rotations
  std::vector<EarlyMerge> early_merges_;               // after the last update
  std::int64_t rotations_every_;
  StageDelay delay_;
  std::int64_t drift_every_;  // in updates; 0: a synchronous pipeline
  std::int64_t made_ = 0;     // updates since the start of the process
  GradientDigests<Exec, T>* watch_ = nullptr;
  bool again_ = false;      // the pass under way is one of an audit
  bool knows_rows_ = true;  // of the experts, in passes that were in flight when the run was saved
};

}  // namespace sestina
