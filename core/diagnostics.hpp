// Per-tensor numbers that show how training goes: RMS of the weight and of the last update, and the spectral norm.
#pragma once
#include <vector>

#include "core/optimizer/base/owned_tensor.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// The master weights of some tensors as they were before an update.
template <class Exec, class T>
class WeightsBefore {
 public:
  explicit WeightsBefore(const std::vector<OwnedTensor<Exec, T>>&);
  void keep(const Exec&);
  // Returns W' - (1 - decay) W of tensor i, for its weights W' now and W before, whose place it takes. cautious: only
  // weights that came nearer to zero have decayed (UpdateRules).
  Vector<Acc<T>, Exec> movement(const Exec&, std::size_t i, double decay = 0, bool cautious = false);

 private:
  std::vector<Vector<Acc<T>, Exec>> masters_;
  std::vector<std::size_t> offset_;
  Kokkos::View<Acc<T>*, typename Exec::memory_space> values_;
};

// Power iterations per call; the start vector is that of the call before, so the estimate keeps improving.
inline constexpr int power_iterations = 6;

template <class Exec, class T>
class TensorDiagnostics {
 public:
  explicit TensorDiagnostics(const Exec&, const std::vector<OwnedTensor<Exec, T>>&);
  // Keeps the weights as they are before the update that is to be measured.
  void before_update(const Exec& exec) { before_.keep(exec); }
  // One set of values per tensor, in order. spectral_norm of a vector is its Euclidean norm. Fences.
  struct Values {
    double weight_rms, update_rms, spectral_norm;
  };
  void after_update(const Exec&, std::vector<Values>&);

 private:
  double spectral_norm(const Exec&, std::size_t tensor);

  std::vector<OwnedTensor<Exec, T>> tensors_;
  WeightsBefore<Exec, T> before_;
  Kokkos::View<Acc<T>*, typename Exec::memory_space> right_, left_;  // right_: a start vector per tensor, kept warm
  std::vector<std::size_t> right_offset_;
  Workspace<Exec> workspace_;
  Gemm<Exec> gemm_;
};

}  // namespace sestina
