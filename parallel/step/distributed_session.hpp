// The part of a run that all ranks do together: one Session on each rank, and around it the plan, carried out. On one
// rank there is nothing around it.
//
// A step: forward_backward for each micro-batch of the rank's share (gradients leave for their owners in the last),
// complete (sums are there; loss and norm are known to all), then update, whose weights travel under the next forward.
#pragma once
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "core/optimizer/methods/sharded_muon.hpp"
#include "core/session.hpp"
#include "parallel/comm/process_grid.hpp"
#include "parallel/comm/tensor_group.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/step/gradient_reduce.hpp"
#include "parallel/step/matrix_homes.hpp"
#include "parallel/step/weight_gather.hpp"

namespace sestina {

// The micro-batches of one data-parallel rank, of `all` in a step: numbers [first, first + count).
struct BatchShare {
  int micro_batch = 1;  // sequences in each
  int all = 1, first = 0, count = 1;
};
BatchShare batch_share(const Options&, int dp_rank);

template <class Exec, class T>
class DistributedSession {
 public:
  // world.size() must be dp * tp of the options; pp is 1. The trace, if any, must outlive it.
  DistributedSession(const Exec&, const Options&, Communicator& world, Trace* trace = nullptr);
  ~DistributedSession();

  Session<Exec, T>& session() { return *session_; }
  const ProcessGrid& grid() const { return grid_; }
  const BatchShare& share() const { return share_; }
  const StagePlan& plan() const { return stage_; }

  void initialise(std::uint64_t seed);
  // Micro-batch `micro` of the share.
  void forward_backward(double gradient_scale, int micro);

  struct StepSums {
    double loss = 0;             // sum of token losses over the global batch
    double norm = 0;             // over all gradients
    bool weights_finite = true;  // all that updates have written so far
  };
  // The same on all ranks, whatever the layout where sums are exact.
  StepSums complete();
  void update(std::int64_t t, double factor, double gradient_scale);
  void finish_gather();          // all weights are there
  double take_gather_seconds();  // that forward passes waited for weights, since the last call
  // That backward passes spent on sums of gradients, and updates on matrices that travel to their home and back.
  double take_reduce_seconds() { return std::exchange(reduce_seconds_, 0.0); }
  double take_home_seconds() { return homes_ ? homes_->take_wait_seconds() : 0; }

  // Master weights ("/model/...") and optimizer state that this rank keeps.
  std::vector<StateField> model_fields() const;
  std::vector<StateField> optimizer_fields() const;
  std::vector<StateField> fields() const;  // both
  void weights_changed();                  // master weights were written, on all ranks: rounds, sends and waits

  // Exchanges that a step starts on this rank, by what they carry.
  struct Exchanges {
    std::int64_t gradients = 0, weights = 0, homes = 0;
  };
  Exchanges exchanges_per_step() const;
  // Sums over the tensor-parallel group that an update takes: one norm and the Gram matrices of each sharded matrix.
  std::int64_t sums_per_update() const { return sharded_ ? sharded_->sums_per_step() : 0; }
  typename TensorGroup<Exec>::Count take_group_count() { return tensor_group_->take_count(); }

 private:
  struct Hooks final : BlockHooks {
    explicit Hooks(DistributedSession& s) : session(s), span(s.trace_) {}
    void before_forward(int block) override {
      span.end();
      if (session.gather_) session.gather_->before_forward(block);
      if (training) span.begin("forward", block);
    }
    void before_backward(int block) override { span.begin("backward", block); }
    void after_backward(int block) override {
      span.end();
      if (!session.reduce_) return;
      const auto begin = std::chrono::steady_clock::now();
      session.reduce_->block_done(block);
      session.reduce_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    DistributedSession& session;
    OpenSpan span;          // of the block that is computed
    bool training = false;  // an evaluation shows no blocks
  };
  void trace_groups();
  void complete_norm();

  Exec exec_;
  Communicator& world_;
  Trace* trace_;  // null: none
  ProcessGrid grid_;
  BatchShare share_;
  ModelConfig whole_;
  StagePlan stage_;
  std::unique_ptr<TensorGroup<Exec>> tensor_group_, replicas_;  // ranks with the same key and value heads
  std::unique_ptr<Communicator> replica_group_;
  std::unique_ptr<Session<Exec, T>> session_;
  std::unique_ptr<MatrixHomes<Exec, T>> homes_;
  std::unique_ptr<ShardedMuon<Exec, T>> sharded_;  // null: no matrix is updated in shards
  std::unique_ptr<GradientReduce<Exec>> reduce_;
  std::unique_ptr<WeightGather<Exec, T>> gather_;
  Hooks hooks_{*this};
  std::vector<double> losses_, sums_, shard_squares_;
  double reduce_seconds_ = 0;
};

}  // namespace sestina
