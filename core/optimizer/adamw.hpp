// AdamW over all owned tensors, in fused passes: neighbours in memory that share their numbers are updated by one
// kernel. Decay acts on tensors with two dimensions only (embedding and head included), unless a group says otherwise.
#pragma once
#include <string>
#include <vector>

#include "core/optimizer/owned_tensor.hpp"
#include "core/optimizer/routing.hpp"
#include "core/state_field.hpp"
#include "kernels/workspace.hpp"

namespace sestina {

template <class Exec, class T>
class AdamW {
 public:
  // State (momentum, second_moment) is created here, zero, before the first step.
  AdamW(const Exec&, std::vector<OwnedTensor<Exec, T>>, const OptimizerOptions&);

  // Update number t (from 1) with factor times each tensor's peak rate; gradients are multiplied by gradient_scale.
  void step(const Exec&, std::int64_t t, double factor, double gradient_scale);

  // "/optimizer/<HF name>/momentum" and ".../second_moment", in spec order; shape of the tensor.
  std::vector<StateField> state() const;
  std::size_t state_bytes() const { return 2 * momentum_.size() * sizeof(Acc<T>); }

 private:
  struct Run {  // tensors that lie side by side and share their numbers
    OwnedTensor<Exec, T> tensor;
    std::size_t offset = 0;
    TensorRates rates;
  };
  using Storage = Kokkos::View<Acc<T>*, typename Exec::memory_space>;

  AdamWOptions options_;
  std::vector<OwnedTensor<Exec, T>> tensors_;
  std::vector<Run> runs_;
  Storage momentum_, second_moment_;
};

// Norm over all gradients: squares summed in double per tensor over fixed chunks, tensors in order. Fences.
template <class Exec, class T>
double gradient_norm(const Exec&, const std::vector<OwnedTensor<Exec, T>>&, Workspace<Exec>&);

// min(1, clip_norm / (norm + 1e-6)); 1 when clip_norm is 0.
inline double clip_scale(double norm, double clip_norm) {
  return clip_norm > 0 && norm + 1e-6 > clip_norm ? clip_norm / (norm + 1e-6) : 1.0;
}

}  // namespace sestina
