// What one stage of an asynchronous pipeline does about the delay of its gradients, t updates
// (parallel.delay_correction): a smaller rate (PipeDream-LR, PipeMare's T1), forward passes at predicted weights,
// backward passes at an estimate of the weights of their forward passes (PipeMare's T2), gradients corrected for what
// has changed since (DC-ASGD). Nesterov's look-ahead is the optimizer's (core/optimizer/methods/adamw.hpp). A stage
// without a delay corrects nothing.
//
// Movements are those of the weights that are computed with, whole, with rate and decay in them; every rank has them.
// Where a tensor starts over (TensorSpec::reset_every) its movement does too.
#pragma once
#include <memory>

#include "core/deck/options.hpp"
#include "core/weight_versions.hpp"

namespace sestina {

template <class Exec, class T>
class DelayCorrection {
 public:
  using Kind = ParallelOptions::DelayCorrection;

  // versions: of the stage; where weights are predicted it holds predictions, the newest one too. Both must outlive it.
  DelayCorrection(const ParallelOptions::Correction&, int delay, const ModelConfig&, LayerRange, const Arena<Exec, T>&,
                  WeightVersions<Exec, T>& versions);

  bool predicts() const { return delay_ > 0 && set_.kind == Kind::prediction; }
  bool estimates() const { return delay_ > 0 && set_.kind == Kind::pipemare; }
  bool compensates() const { return delay_ > 0 && set_.kind == Kind::dc_asgd; }
  bool follows_weights() const { return predicts() || estimates(); }

  // Of the learning rate of update t: delay^-(1 - min(t / steps, 1)) where the delay is more than one update.
  double rate(std::int64_t t) const;

  // Around update number version + 1, or one that is withheld; all weights are there. begin: none has been before.
  void begin(const Exec&, std::int64_t version);
  void before_update(const Exec&, std::int64_t version);
  void after_update(const Exec&, std::int64_t version);
  void restored(const Exec&);  // its state was read

  // What the backward pass of a minibatch multiplies by, in place of the newest weights; null: by those.
  const Weights<Exec, T>* estimate(std::int64_t minibatch) const;
  // Complete gradients of what this rank owns, computed at the weights of `version`.
  void correct_gradients(const Exec&, std::int64_t version) const;

  std::vector<StateField> fields(const std::string& prefix, bool saved) const;

 private:
  void look_back_all(const Exec&);
  Vector<Acc<T>, Exec> velocity(std::size_t tensor) const {
    return Vector<Acc<T>, Exec>(velocity_.data() + velocity_at_[tensor],
                                static_cast<std::size_t>(arena_.specs()[tensor].elements()));
  }

  ParallelOptions::Correction set_;
  int delay_;
  Arena<Exec, T> arena_;  // views of the newest weights
  WeightVersions<Exec, T>& versions_;
  std::unique_ptr<WeightVersions<Exec, T>> earlier_;  // PipeMare: the estimate; during an update the weights before it
  Kokkos::View<Acc<T>*, typename Exec::memory_space> velocity_;
  std::vector<std::size_t> velocity_at_;  // by tensor
};

}  // namespace sestina
