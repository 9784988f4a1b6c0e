// What the data- and tensor-parallel ranks of a stage do together around its passes: gradients to their owners, whole
// matrices to their homes, updated weights to everybody. On one rank nothing is exchanged, and the update is all there
// is.
#pragma once
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "core/optimizer/methods/sharded_muon.hpp"
#include "core/stage.hpp"
#include "kernels/blas/stopwatch.hpp"
#include "parallel/comm/process_grid.hpp"
#include "parallel/comm/tensor_group.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/stage/coherence.hpp"
#include "parallel/stage/gradient_reduce.hpp"
#include "parallel/stage/matrix_homes.hpp"
#include "parallel/stage/weight_gather.hpp"

namespace sestina {

// Groups of one rank inside its stage: the grid, and those that hold the same key and value heads.
template <class Exec>
struct StageGroups {
  Communicator* all = nullptr;  // ranks of the stage
  ProcessGrid grid;
  std::unique_ptr<Communicator> replica_group;
  std::unique_ptr<TensorGroup<Exec>> tensor, replicas;
  std::shared_ptr<RefreshWorkers> workers;  // of all stages of this rank; null: no asynchronous refreshes
};

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
  const std::vector<double>& sum(std::vector<double>& losses, int first, int count);
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

  // Since the last call: what forward passes waited for weights, backward passes spent on sums of gradients, and
  // updates on matrices that travel.
  double take_gather_seconds() { return gather_.take_wait_seconds(); }
  double take_reduce_seconds() { return std::exchange(reduce_seconds_, 0.0); }
  double take_home_seconds() { return homes_.take_wait_seconds(); }
  // Also what updates before the last one took beyond their call: a lone rank's device goes on with them under the
  // first passes of the next step.
  double take_update_seconds() { return std::exchange(update_seconds_, 0.0); }

  void initialise(double range, std::uint64_t seed) { homes_.initialise(range, seed); }
  std::vector<StateField> model_fields() const;  // of stage and homes
  std::vector<StateField> optimizer_fields() const;
  void weights_changed();  // master weights were written, on all ranks: rounds, sends and waits

  // Exchanges that a step starts on this rank, by what they carry.
  struct Count {
    std::int64_t gradients = 0, weights = 0, homes = 0;
  };
  Count per_step() const;
  std::int64_t sums_per_update() const { return sharded_ ? sharded_->sums_per_step() : 0; }

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
