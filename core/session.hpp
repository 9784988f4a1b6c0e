// All that one rank holds of a model: weights, gradients, activations, optimizer, and the few things a run does with
// them. Training, evaluation, generation and benchmarks are built on it; it knows neither files nor ranks.
#pragma once
#include <memory>
#include <vector>

#include "core/deck/options.hpp"
#include "core/layout/accumulation_tree.hpp"
#include "core/layout/model_part.hpp"
#include "core/model/formed_weights.hpp"
#include "core/model/transformer.hpp"
#include "core/optimizer/gradient_norm.hpp"
#include "core/optimizer/optimizer.hpp"
#include "core/optimizer/qk_clip.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

struct SessionSetting {
  int micro_batch = 1, sequence = 1;  // B, T
  bool recompute = false, deterministic = false, mask_documents = false;
  int micros = 1;          // micro-batches of a step
  std::uint64_t seed = 1;  // of permutations drawn when weights in another form than dense are merged
};
SessionSetting session_setting(const Options&);

template <class Exec, class T>
class Session {
 public:
  // One rank with the whole model. optimizer null: weights and activations for forward passes alone (evaluation,
  // generation).
  Session(const Exec&, const ModelConfig&, const SessionSetting&, const OptimizerOptions* optimizer);
  // A rank's part of it, to be trained; the group must outlive it. make_optimizer before the first update.
  Session(const Exec&, const ModelPart&, const SessionSetting&, const RankLayout&, GroupOps<Exec>*);
  void make_optimizer(const ModelConfig& whole, const OptimizerOptions&,
                      const std::vector<MatrixItem<Exec>>& homed = {});

  void initialise(std::uint64_t seed);  // weights as functions of (seed, name, index)

  // Host tokens (B, T+1); inputs are columns 0..T-1, targets 1..T. A target below 0 does not count (its input is read
  // as 0). first_key (B, T) or null: see kernels/model/attention.hpp.
  void load(const std::int32_t* tokens, const std::int32_t* first_key);
  // Sum of token losses of the loaded batch, micro-batch `micro` of setting().micros; gradients of gradient_scale times
  // that sum are added to those of the micro-batches before: in order, or deterministically in a tree.
  double forward_backward(double gradient_scale, int micro);
  // The same without a wait: the sum is norm().noted(micro) once norm().squares() was called.
  void accumulate(double gradient_scale, int micro);
  double loss();                      // the sum alone
  void token_losses(Acc<T>* host);    // (N), of the last loss() or forward_backward(); fences
  void logits(int row, float* host);  // (V) of row b * T + t of the loaded batch, after a forward pass
  void forward();
  // Called around blocks; after_backward in the last micro-batch only. Null: nobody. Must outlive its use.
  void set_hooks(BlockHooks* hooks) { outer_hooks_ = hooks; }

  GradientNorm<Exec, T>& norm() { return *norm_; }
  double gradient_norm();  // of one rank
  void update(std::int64_t t, double factor, double gradient_scale);
  // Behind update t, with all weights there: where the form of the weights says so, they are merged.
  bool merges_behind(std::int64_t t) const { return sestina::merges_behind(config(), t); }
  void merge_if_due(std::int64_t t) { sestina::merge_if_due<Exec, T>(model_, weights_, setting_.seed, t); }
  // Weights in another form than dense, by the names of the dense ones; host memory in Acc<T>. They fence.
  void set_dense(const std::string& weight, const Acc<T>* host);
  void get_dense(const std::string& weight, Acc<T>* host);
  Optimizer<Exec, T>& optimizer() { return *optimizer_; }
  QkClip<Exec, T>* qk_clip() { return qk_clip_.get(); }  // null without optimizer.qk_clip

  std::vector<StateField> model_fields() const;  // master weights and frozen ones, "/model/<HF name>[/<part>]"
  std::vector<StateField> optimizer_fields() const;
  std::vector<StateField> fields() const;  // both
  void copy_to_host(const StateField&, void* host) const;
  void copy_from_host(const StateField&, const void* host) const;
  void weights_changed();  // after model_fields were written: rounds the compute weights anew

  const SessionSetting& setting() const { return setting_; }
  const ModelConfig& config() const { return model_.config(); }
  Transformer<Exec, T>& model() { return model_; }
  const Arena<Exec, T>& arena() const { return arena_; }
  const Weights<Exec, T>& weights() const { return weights_; }
  const std::vector<OwnedTensor<Exec, T>>& tensors() const { return tensors_; }  // of which something is owned

 private:
  // Adds up micro-batches behind each block, and hands on to the outer hooks.
  struct MicroHooks final : BlockHooks {
    explicit MicroHooks(Session& s) : session(s) {}
    void before_forward(int block) override;
    void before_backward(int block) override;
    void after_backward(int block) override;
    Session& session;
    int micro = 0;
  };

  // By its place: an element of device memory is not the host's to name.
  Vector<const std::int32_t, Exec> batch_row(int row) const {
    return {batch_.data() + static_cast<std::size_t>(row) * batch_.extent(1), batch_.extent(1)};
  }
  void backward_pass(double gradient_scale, int micro);
  StateField frozen_field(std::size_t tensor) const;
  LayerRange all_layers() const { return {0, static_cast<int>(model_.config().num_hidden_layers)}; }
  Session(const Exec&, const ModelPart&, const SessionSetting&, const RankLayout&, GroupOps<Exec>*, bool training);

  Exec exec_;
  SessionSetting setting_;
  Transformer<Exec, T> model_;
  Arena<Exec, T> arena_;
  Activations<Exec, T> slot_;
  Weights<Exec, T> weights_;
  Gradients<Exec, T> gradients_;  // empty without an optimizer
  std::vector<OwnedTensor<Exec, T>> tensors_;
  std::unique_ptr<AccumulationTree<Exec, T>> tree_;  // deterministic, with several micro-batches
  std::unique_ptr<GradientNorm<Exec, T>> norm_;
  std::unique_ptr<Optimizer<Exec, T>> optimizer_;
  std::unique_ptr<QkClip<Exec, T>> qk_clip_;  // only with optimizer.qk_clip
  MicroHooks hooks_{*this};
  BlockHooks* outer_hooks_ = nullptr;
  int first_head_ = 0;  // of this rank's query heads
  template <class Space>
  using Batch = Kokkos::View<std::int32_t**, Kokkos::LayoutRight, Space>;  // rows: inputs, targets, first keys; (3, N)
  Batch<typename Exec::memory_space> batch_;
  // Of a device: one for each micro-batch of a step, as a copy from it may be under way until the step's wait.
  std::vector<Batch<HostSide<Exec>>> host_batches_;
  std::size_t loaded_ = 0;  // of these, the last one
  bool masked_ = false;     // the loaded batch has first keys
};

}  // namespace sestina
