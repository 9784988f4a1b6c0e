// QK-clip (Kimi K2, arXiv 2507.20534): where the largest attention score s of a group of query heads (H in all) exceeds
// a threshold, eta = threshold / s, and after the update W_q *= eta^alpha, W_k *= eta^(1 - alpha) for those heads, on
// master and compute weights. Scores are bilinear in both, so the group's largest one comes back to the threshold.
#pragma once
#include <vector>

#include "core/deck/options.hpp"
#include "core/optimizer/base/owned_tensor.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

template <class Exec, class T>
class QkClip {
 public:
  // tensors are the owned ones; their q_proj and k_proj are scaled, biases included.
  QkClip(const Exec&, const ModelConfig&, const OptimizerOptions&, const std::vector<OwnedTensor<Exec, T>>& tensors);

  // Returns where the attention of a layer leaves the largest scores of heads [first, first + count).
  Vector<Acc<T>, Exec> scores(int layer, int first, int count) const;
  void start_step(const Exec&);  // forgets the scores of the last step
  // Sends the scores to the host after the passes of an update; they are there after the next wait for the space.
  void send(const Exec&);
  // Returns, after that wait, the scores of all layers and heads, to be completed by the largest over all ranks.
  std::vector<double>& take();
  // Scales, after that, the groups of heads whose scores exceed the threshold; returns the largest score that there
  // was.
  double apply(const Exec&);

 private:
  struct Head {  // rows of q_proj or k_proj, weight or bias, that share one factor
    int layer, group;
    double exponent;
    Vector<Acc<T>, Exec> master;
    Vector<T, Exec> weight;
  };
  void add(const OwnedTensor<Exec, T>&);

  double threshold_, alpha_;
  int heads_, groups_;
  std::vector<Head> scaled_;
  Kokkos::View<Acc<T>**, Kokkos::LayoutRight, typename Exec::memory_space> scores_;  // (layers, H)
  Kokkos::View<Acc<T>**, Kokkos::LayoutRight, HostSide<Exec>> host_;                 // on the host the same memory
  std::vector<double> largest_;                                                      // (layers, H), of all ranks
};

}  // namespace sestina
