// QK-clip (Kimi K2, arXiv 2507.20534): where the largest attention score s of a group of query heads (H in all) exceeds
// a threshold, eta = threshold / s, and after the update W_q *= eta^alpha, W_k *= eta^(1 - alpha) for those heads, on
// master and compute weights. Scores are bilinear in both, so the group's largest one comes back to the threshold.
#pragma once
#include <vector>

#include "core/deck/options.hpp"
#include "core/optimizer/base/owned_tensor.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

// Rows of q_proj or k_proj, weight or bias, that share one factor.
template <class Exec, class T>
struct ClippedRows {
  int layer = 0, group = 0;
  double exponent = 0;
  Vector<Acc<T>, Exec> master;
  Vector<T, Exec> weight;  // empty where it is the master
};

template <class Exec, class T>
class QkClip {
 public:
  // tensors are the owned ones; their q_proj and k_proj are scaled, biases included.
  QkClip(const Exec&, const ModelConfig&, const OptimizerOptions&, const std::vector<OwnedTensor<Exec, T>>& tensors);

  // Makes places for the scores of so many minibatches, which take turns in them: those that passes may be under way
  // of. There is one at first.
  void keep(int minibatches);
  // Returns where the attention of a layer leaves the largest scores of heads [first, first + count).
  Vector<Acc<T>, Exec> scores(std::int64_t minibatch, int layer, int first, int count) const;
  void start_step(const Exec&, std::int64_t minibatch);  // forgets the scores that lie in its place
  // Sends the scores to the host after the passes of a minibatch; they are there after the next wait for the space.
  void send(const Exec&, std::int64_t minibatch);
  // Returns, after that wait, the scores of all layers and heads, to be completed by the largest over all ranks.
  std::vector<double>& take();
  // Scales, after that, the groups of heads whose scores exceed the threshold; returns the largest score that there
  // was.
  double apply(const Exec&) const;

  // For matrices that are updated elsewhere than where they are computed with: adds the rows of a tensor, all of them
  // or a slab, and scales such rows as apply() scales its own.
  void add_rows(const OwnedTensor<Exec, T>&, std::vector<ClippedRows<Exec, T>>& rows) const;
  void scale(const Exec&, const std::vector<ClippedRows<Exec, T>>& rows) const;

 private:
  double largest() const;
  double threshold_, alpha_;
  int heads_, groups_;
  std::vector<ClippedRows<Exec, T>> rows_;
  Vector<Acc<T>, Exec> place_of(std::int64_t minibatch) const;

  std::int64_t places_ = 1;
  Kokkos::View<Acc<T>*, typename Exec::memory_space> scores_;  // (places, layers, H)
  Kokkos::View<Acc<T>*, HostSide<Exec>> host_;                 // (layers, H); on the host in the same memory
  std::vector<double> largest_;                                // (layers, H), of all ranks
};

}  // namespace sestina
