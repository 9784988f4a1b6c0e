// The exchanges of a stage's data- and tensor-parallel ranks around its passes: gradients go to their owners, whole
// matrices to their homes, updated weights to all ranks. On one rank nothing is exchanged, and only the update remains.
#pragma once
#include <chrono>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/optimizer/lookahead.hpp"
#include "core/optimizer/methods/sharded_muon.hpp"
#include "core/optimizer/weight_ema.hpp"
#include "core/stage.hpp"
#include "core/update_meter.hpp"
#include "kernels/blas/stopwatch.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/stage/block_gather.hpp"
#include "parallel/stage/bucket_updates.hpp"
#include "parallel/stage/coherence.hpp"
#include "parallel/stage/matrix_homes.hpp"
#include "parallel/stage/owner_exchange.hpp"
#include "parallel/stage/stage_shares.hpp"
#include "parallel/stage/stages_of.hpp"

namespace sestina {

template <class Exec, class T>
class StageExchanges {
 public:
  // Gives the stage its optimizer. The plan's buckets must be those of this rank (lay_out_buckets). groups, stage and
  // trace (null: none) must outlive it.
  StageExchanges(const Exec&, const PlanInput&, const StagePlan&, StageGroups<Exec>&, Stage<Exec, T>&, Trace*);

  // Called around the blocks of a pass: the first two wait for the weights that the block reads, and for room for its
  // gradients; block_done sends off gradients that are complete. Where gradients take turns it is called after each
  // micro-batch, else after the last, and free_place before gradients of a block are written outside its own pass.
  void before_forward(int block) {
    gather_.before_forward(block);
    expert_gather_.before_forward(block);
    for (auto& turns : turns_) turns->before_forward(block);
  }
  void before_backward(int block) {
    free_place(block);
    for (auto& turns : turns_) turns->before_backward(block);
  }
  void block_done(int block);
  void free_place(int block);
  bool takes_each_micro() const { return reduce_.takes_each_micro(); }
  void finish_gradients();  // after the stage's passes: gradients are complete where they are owned
  // Called after that: returns sums of squares by tensor, and the flag after them, of the whole stage. losses: those of
  // the step's micro-batches of all data-parallel ranks, of which this rank's are noted; complete on return. The result
  // is the same on all ranks of the stage.
  std::span<const double> sum(std::span<double> losses, const BatchShare& mine, std::int64_t minibatch);
  void update(std::int64_t t, double factor, double gradient_scale);
  // With parallel.overlap_updates, called before finish_gradients: see PipelineStage. update() then leaves out what
  // this has updated.
  double update_matrices(std::int64_t t, double factor, double clip_norm);
  void sum_loads(std::int64_t minibatch);  // completes the loads of experts, before the update or in its place
  void follow_weights(std::int64_t t) {    // called after update t, withheld or not
    if (lookahead_) lookahead_->end(exec_, t);
    if (ema_) ema_->follow(exec_, t);
  }
  // Called before the passes of update t, and where it is refused: moves weights on, and back; their owners send them.
  void look_ahead(std::int64_t t, double factor);
  void look_back();
  void start_averages();
  // Returns the records of this rank's tensors, with measures where the last update was measured and is not forgotten.
  // made: updates of the stage since the start of the process.
  std::vector<UpdateRecord> update_records(std::int64_t made) const;
  void forget_measures() { measures_.clear(); }
  void complete();        // called before the host waits for the space
  void finish_gather() {  // waits until all weights are there
    gather_.finish();
    expert_gather_.finish();
    for (auto& turns : turns_) turns->finish();
    complete();
  }

  // Called between updates: makes drifting replicas equal on all ranks (coherence.hpp). Where one data-parallel rank
  // owns them, the others get their weights from it again, as after every update.
  void synchronise();
  bool drifts() const { return drifts_; }
  CoherenceCount take_coherence();
  const Coherence<Exec>* coherence() const { return coherence_.get(); }  // null: no replicas drift, or none are here

  StageSeconds take_seconds();
  double largest_score() const { return largest_score_; }
  LargestLoad largest_load() const { return largest_load_; }

  void initialise(double range, std::uint64_t seed) {
    homes_.initialise(range, seed);
    if (shares_) shares_->initialise(range, seed);
  }
  std::vector<OwnedTensor<Exec, T>> kept_tensors();  // those of which this rank keeps master weights, wherever they lie
  Communicator& ranks() const { return *groups_.ranks.all; }
  std::vector<StateField> model_fields() const;    // those of stage, homes and shares
  std::vector<StateField> trained_fields() const;  // without frozen tensors
  std::vector<StateField> optimizer_fields() const;
  void weights_changed();  // after master weights were written on all ranks: rounds, sends, waits

  StageExchangeCount count() const;

 private:
  void send_weights();
  bool start_gather();
  void sum_over_shards();
  void run_update(std::int64_t t, double factor, double gradient_scale);
  void count_last_update();
  void start_coherence(const PlanInput&);
  void start_meter(const PlanInput&);
  // Matrices that are not where they are computed with: the optimizer has them after all others.
  const std::vector<MatrixItem<Exec>>& moved_items() const { return shares_ ? shares_->items() : homes_.items(); }
  void publish();
  bool measures(std::int64_t t) const { return meter_ && t % updates_every_ == 0; }
  enum class Replicas { due, all };
  void make_equal(Replicas);

  Exec exec_;
  StageGroups<Exec>& groups_;
  Stage<Exec, T>& stage_;
  Trace* trace_;
  GradientBuckets buckets_;
  MatrixHomes<Exec, T> homes_;
  std::unique_ptr<StageShares<Exec, T>> shares_;   // null: parallel.partition is not "groups", or one rank
  std::unique_ptr<ShardedMuon<Exec, T>> sharded_;  // null: no matrix is updated in shards
  std::unique_ptr<BucketUpdates<Exec, T>> early_;  // null: nothing is updated before all gradients are there
  std::unique_ptr<WeightEma<Exec>> ema_;           // null: train.ema_tau = 0
  std::unique_ptr<Lookahead<Exec>> lookahead_;     // null: train.lookahead.factor = 0
  GradientReduce<Exec> reduce_;
  WeightGather<Exec, T> gather_;
  GradientReduce<Exec> expert_reduce_;  // the same for experts, among the ranks that hold the same ones
  WeightGather<Exec, T> expert_gather_;
  std::vector<std::unique_ptr<BlockGather<Exec, T>>> turns_;  // that of experts last; empty: all weights stay
  bool drifts_;                                  // replicas drift on some rank of the stage; the same on all of them
  bool owned_ = false;                           // one data-parallel rank owns; its tensor-parallel group has replicas
  std::unique_ptr<Communicator> replica_group_;  // null: the data-parallel group
  std::unique_ptr<Coherence<Exec>> coherence_;
  CoherenceBytes published_;  // shards sent after synchronisations
  std::int64_t updates_every_;
  std::unique_ptr<UpdateMeter<Exec, T>> meter_;  // null: no update is measured
  std::vector<UpdateMeasure> measures_;          // by tensor of the meter; empty: not of the last update
  std::vector<double> sums_, shard_squares_;
  double largest_score_ = -std::numeric_limits<double>::infinity();
  LargestLoad largest_load_;
  bool exposed_;  // an update ends when all weights are there (parallel.reduce = "all")
  double reduce_seconds_ = 0, update_seconds_ = 0, exposed_seconds_ = 0;
  Stopwatch<Exec> watch_;      // times the last update on the device
  double called_seconds_ = 0;  // seconds of its call; 0: the update was waited for
};

}  // namespace sestina
