// Per-tensor numbers that show how training goes: RMS of the weight and of the last update, and the spectral norm.
#pragma once
#include <vector>

#include "core/optimizer/base/owned_tensor.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

template <class Exec, class T>
class TensorDiagnostics {
 public:
  explicit TensorDiagnostics(const Exec&, const std::vector<OwnedTensor<Exec, T>>&);
  // Keeps the weights as they are before the update that is to be measured.
  void before_update(const Exec&);
  // One set of values per tensor, in order. spectral_norm of a vector is its Euclidean norm. Fences.
  struct Values {
    double weight_rms, update_rms, spectral_norm;
  };
  void after_update(const Exec&, std::vector<Values>&);

 private:
  double spectral_norm(const Exec&, std::size_t tensor);

  std::vector<OwnedTensor<Exec, T>> tensors_;
  Kokkos::View<Acc<T>*, typename Exec::memory_space> previous_, right_,
      left_;  // right_: a start vector per tensor, kept warm
  std::vector<std::size_t> offset_, right_offset_;
  Workspace<Exec> workspace_;
  Gemm<Exec> gemm_;
};

}  // namespace sestina
