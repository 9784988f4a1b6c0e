// The delay of a stage in an asynchronous pipeline: the weights of the last updates, how far they have moved since, and
// what corrects for it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "core/memory/state_field.hpp"
#include "core/model/weights.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

// Weights of the last few updates, for passes of an asynchronous pipeline that began under them: copies of what a
// stage computes with and trains, one after another in a ring. Version v is the weights after v updates of the stage;
// the newest are the stage's own. What is frozen has no versions: a pipeline drains where it changes.

template <class Exec, class T>
class WeightVersions {
 public:
  // depth: how many copies before the newest weights are kept; 0: none.
  WeightVersions(const ModelConfig&, LayerRange, const Arena<Exec, T>&, int depth);

  // Stores the arena's weights, complete on this rank, as `version`; the oldest copy makes room.
  void keep(const Exec&, std::int64_t version);
  const Weights<Exec, T>& of(std::int64_t version) const {  // one of the last `depth` that were kept
    return views_[place(version)];
  }
  // Return the copy of tensor i of the arena, flat: one of the two is empty, or both where the tensor is frozen.
  Vector<T, Exec> matrix_of(std::int64_t version, std::size_t i) const {
    const TensorSpec& spec = arena_.specs()[i];
    return !has_matrix(spec) ? Vector<T, Exec>() : Vector<T, Exec>(matrix(version, i), elements(spec));
  }
  Vector<Acc<T>, Exec> vector_of(std::int64_t version, std::size_t i) const {
    const TensorSpec& spec = arena_.specs()[i];
    return has_vector(spec) ? Vector<Acc<T>, Exec>(vector(version, i), elements(spec)) : Vector<Acc<T>, Exec>();
  }
  int depth() const { return static_cast<int>(views_.size()); }

  // Returns the copy of a version as state, "<prefix>/<HF name>": the weights that this rank computes with. saved: this
  // rank writes them, where several hold the same.
  std::vector<StateField> fields(std::int64_t version, const std::string& prefix, bool saved) const;

 private:
  // Return the first element of tensor i (of the arena) in a copy.
  T* matrix(std::int64_t version, std::size_t i) const { return matrices_.data() + matrix_at(version, i); }
  Acc<T>* vector(std::int64_t version, std::size_t i) const { return vectors_.data() + vector_at(version, i); }
  static bool has_matrix(const TensorSpec& spec) { return spec.trainable && !spec.is_vector(); }
  static bool has_vector(const TensorSpec& spec) { return spec.trainable && spec.is_vector(); }
  static std::size_t elements(const TensorSpec& spec) { return static_cast<std::size_t>(spec.elements()); }
  std::size_t place(std::int64_t version) const { return static_cast<std::size_t>(version) % views_.size(); }
  std::size_t matrix_at(std::int64_t version, std::size_t i) const {
    return place(version) * matrices_in_one_ + offset_[i];
  }
  std::size_t vector_at(std::int64_t version, std::size_t i) const {
    return place(version) * vectors_in_one_ + offset_[i];
  }

  Arena<Exec, T> arena_;             // views of the newest weights
  std::vector<std::size_t> offset_;  // by tensor, among the matrices or the vectors of a copy
  std::size_t matrices_in_one_ = 0, vectors_in_one_ = 0;
  Kokkos::View<T*, typename Exec::memory_space> matrices_;
  Kokkos::View<Acc<T>*, typename Exec::memory_space> vectors_;
  std::vector<Weights<Exec, T>> views_;
};

// How far the weights have moved since the version that a delayed pass used: |newest - used| / |newest| over all
// trained tensors of a stage, in sums that no number of threads changes.

// Sums of squares over what one rank counts, see TensorHolding; those of a tensor-parallel group are added up.
struct WeightDrift {
  double moved = 0, weight = 0;
};

template <class Exec, class T>
class DriftMeter {
 public:
  // experts_alone: other ranks, which hold other experts, count all else.
  explicit DriftMeter(const Arena<Exec, T>&, bool experts_alone = false);
  // Compares the newest weights, complete on this rank, with a version that is held. Fences.
  WeightDrift from(const Exec&, const WeightVersions<Exec, T>&, std::int64_t version);

 private:
  bool counts(std::size_t tensor) const;

  Arena<Exec, T> arena_;
  bool experts_alone_;
  HostValues<Exec> sums_;  // by tensor and piece: moved, followed by as many of weight
};

// The correction that one stage of an asynchronous pipeline makes for the delay of its gradients, t updates
// (parallel.delay_correction): a smaller rate (PipeDream-LR, PipeMare's T1), forward passes at predicted weights,
// backward passes at an estimate of the weights of their forward passes (PipeMare's T2), gradients corrected for what
// has changed since (DC-ASGD). Nesterov's look-ahead is the optimizer's (core/optimizer/methods/adamw.hpp). A stage
// without a delay corrects nothing.
//
// Movements are those of the weights that are computed with, whole, with rate and decay in them; every rank has them.
// Where a tensor starts over (TensorSpec::reset_every) its movement does too.

template <class Exec, class T>
class DelayCorrection {
 public:
  using Kind = ParallelOptions::DelayCorrection;

  // versions are those of the stage; predicted weights are stored in it, the newest too. Both references must outlive
  // this.
  DelayCorrection(const ParallelOptions::Correction&, int delay, const ModelConfig&, LayerRange, const Arena<Exec, T>&,
                  WeightVersions<Exec, T>& versions);

  bool predicts() const { return delay_ > 0 && set_.kind == Kind::prediction; }
  bool estimates() const { return delay_ > 0 && set_.kind == Kind::pipemare; }
  bool compensates() const { return delay_ > 0 && set_.kind == Kind::dc_asgd; }
  bool follows_weights() const { return predicts() || estimates(); }

  // Returns the factor on the learning rate of update t: delay^-(1 - min(t / steps, 1)) for a delay above one update.
  double rate(std::int64_t t) const;

  // Called around update number version + 1, or one that is withheld; all weights are there. begin: before the first
  // one.
  void begin(const Exec&, std::int64_t version);
  void before_update(const Exec&, std::int64_t version);
  void after_update(const Exec&, std::int64_t version);
  void restored(const Exec&);  // called when its state was read

  // Returns the weights for the backward pass of a minibatch, in the place of the newest ones; null: the newest.
  const Weights<Exec, T>* estimate(std::int64_t minibatch) const;
  // Corrects the complete gradients of what this rank owns, computed at the weights of `version`.
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
