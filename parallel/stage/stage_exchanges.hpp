// What the data- and tensor-parallel ranks of a stage do together around its passes: gradients to their owners, whole
// matrices to their homes, updated weights to everybody. On one rank nothing is exchanged, and the update is all there
// is.
#pragma once
#include <chrono>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/optimizer/methods/sharded_muon.hpp"
#include "core/stage.hpp"
#include "kernels/blas/stopwatch.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/stage/coherence.hpp"
#include "parallel/stage/matrix_homes.hpp"
#include "parallel/stage/owner_exchange.hpp"
#include "parallel/stage/stages_of.hpp"

namespace sestina {

template <class Exec, class T>
class StageExchanges {
 public:
  // Gives the stage its optimizer. The plan's buckets must be those of this rank (lay_out_buckets). groups, stage and
  // trace (null: none) must outlive it.
  StageExchanges(const Exec&, const PlanInput&, const StagePlan&, StageGroups<Exec>&, Stage<Exec, T>&, Trace*);

  // Around the blocks of a pass: waits for the weights that it reads; sends off gradients that are complete.
  void before_forward(int block) { gather_.before_forward(block); }
  void block_done(int block);
  void finish_gradients();  // once the stage's passes are over: complete where they are owned
  // Then sums of squares by tensor (and the flag after them) of the whole stage. losses: of the
  // step's micro-batches of all data-parallel ranks, of which this one's are noted; complete on return. The same on all
  // ranks of the stage.
  std::span<const double> sum(std::span<double> losses, const BatchShare& mine);
  void update(std::int64_t t, double factor, double gradient_scale);
  void complete();        // before the host waits for the space
  void finish_gather() {  // all weights are there, or on their way within the limit
    gather_.finish();
    complete();
  }

  // Between updates: replicas that drift are the same on all ranks (coherence.hpp). Where a data-parallel rank owns
  // them, the others get their weights from it once more, as after every update.
  void synchronise();
  bool drifts() const { return drifts_; }
  CoherenceCount take_coherence();
  const Coherence<Exec>* coherence() const { return coherence_.get(); }  // null: no replicas drift, or none are here

  StageSeconds take_seconds();

  void initialise(double range, std::uint64_t seed) { homes_.initialise(range, seed); }
  std::vector<StateField> model_fields() const;  // of stage and homes
  std::vector<StateField> optimizer_fields() const;
  void weights_changed();  // master weights were written, on all ranks: rounds, sends and waits

  StageExchangeCount count() const;

 private:
  void sum_over_shards();
  void run_update(std::int64_t t, double factor, double gradient_scale);
  void count_last_update();
  void start_coherence(const PlanInput&);
  enum class Replicas { due, all };
  void make_alike(Replicas);

  Exec exec_;
  StageGroups<Exec>& groups_;
  Stage<Exec, T>& stage_;
  Trace* trace_;
  GradientBuckets buckets_;
  MatrixHomes<Exec, T> homes_;
  std::unique_ptr<ShardedMuon<Exec, T>> sharded_;  // null: no matrix is updated in shards
  GradientReduce<Exec> reduce_;
  WeightGather<Exec, T> gather_;
  bool drifts_;                                  // on some rank of the stage, the same on all of them
  bool owned_ = false;                           // by one data-parallel rank, whose tensor-parallel group has replicas
  std::unique_ptr<Communicator> replica_group_;  // null: the data-parallel group
  std::unique_ptr<Coherence<Exec>> coherence_;
  CoherenceBytes published_;  // shards that followed
  std::vector<double> sums_, shard_squares_;
  double reduce_seconds_ = 0, update_seconds_ = 0;
  Stopwatch<Exec> watch_;      // of the last update, on the device
  double called_seconds_ = 0;  // of its call; 0: it was waited for
};

}  // namespace sestina
