// All that one rank holds of a model: weights, gradients, activations, optimizer, and the few things a run does with
// them. Training, evaluation, generation and benchmarks are built on it; it knows neither files nor ranks.
#pragma once
#include <memory>
#include <vector>

#include "core/model/transformer.hpp"
#include "core/optimizer/optimizer.hpp"
#include "core/optimizer/qk_clip.hpp"
#include "core/options.hpp"

namespace sestina {

struct SessionSetting {
  int micro_batch = 1, sequence = 1;  // B, T
  bool recompute = false, deterministic = false, mask_documents = false;
};
SessionSetting session_setting(const Options&);

template <class Exec, class T>
class Session {
 public:
  // optimizer null: weights and activations for forward passes alone (evaluation, generation).
  Session(const Exec&, const ModelConfig&, const SessionSetting&, const OptimizerOptions* optimizer);

  void initialise(std::uint64_t seed);  // weights as functions of (seed, name, index)

  // Host tokens (B, T+1); inputs are columns 0..T-1, targets 1..T. A target below 0 does not count (its input is read
  // as 0). first_key (B, T) or null: see kernels/attention.hpp.
  void load(const std::int32_t* tokens, const std::int32_t* first_key);
  // Sum of token losses of the loaded batch; gradients of gradient_scale times that sum are assigned or added.
  double forward_backward(double gradient_scale, bool accumulate);
  double loss();                      // the sum alone
  void logits(int row, float* host);  // (V) of row b * T + t of the loaded batch, after a forward pass
  void forward();

  double gradient_norm();
  void update(std::int64_t t, double factor, double gradient_scale);
  Optimizer<Exec, T>& optimizer() { return *optimizer_; }
  QkClip<Exec, T>& qk_clip() { return *qk_clip_; }  // only with optimizer.qk_clip

  std::vector<StateField> model_fields() const;  // master weights, "/model/<HF name>"
  std::vector<StateField> optimizer_fields() const;
  std::vector<StateField> fields() const;  // both
  void copy_to_host(const StateField&, void* host) const;
  void copy_from_host(const StateField&, const void* host) const;
  void weights_changed();  // after model_fields were written: rounds the compute weights anew

  const SessionSetting& setting() const { return setting_; }
  const ModelConfig& config() const { return config_; }
  Transformer<Exec, T>& model() { return model_; }
  const std::vector<OwnedTensor<Exec, T>>& tensors() const { return tensors_; }

 private:
  LayerRange all_layers() const { return {0, static_cast<int>(config_.num_hidden_layers)}; }

  Exec exec_;
  ModelConfig config_;
  SessionSetting setting_;
  Transformer<Exec, T> model_;
  Arena<Exec, T> arena_;
  Activations<Exec, T> slot_;
  Weights<Exec, T> weights_;
  Gradients<Exec, T> gradients_;  // empty without an optimizer
  std::vector<OwnedTensor<Exec, T>> tensors_;
  std::unique_ptr<Optimizer<Exec, T>> optimizer_;
  std::unique_ptr<QkClip<Exec, T>> qk_clip_;  // only with optimizer.qk_clip
  Workspace<Exec> workspace_;
  BlockHooks hooks_;
  Kokkos::View<std::int32_t**, Kokkos::LayoutRight, typename Exec::memory_space>
      batch_;  // rows: inputs, targets, first keys; (3, N)
  typename decltype(batch_)::HostMirror host_batch_;
  bool masked_ = false;  // the loaded batch has first keys
};

}  // namespace sestina
