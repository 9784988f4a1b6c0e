// Reads dense weights of a checkpoint, in whatever form its run trained them, for export, evaluation, or a run in
// another form.
#pragma once
#include <vector>

#include "core/layout/weight_form.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace sestina {

class DenseReader {
 public:
  explicit DenseReader(const CheckpointReader&);  // the checkpoint must outlive it

  const ModelConfig& model() const { return model_; }  // that of the checkpoint, with the form of its weights
  // Reads a tensor of the dense model, whole, as float32. Kokkos must run where the weight is in another form. A value
  // that is not finite is an Error(nonfinite).
  void read(const TensorSpec&, float* out, ExitCode nonfinite = ExitCode::bad_data) const;

 private:
  // Merges the parts of a weight. bf16: the run computed in bf16.
  void merge(const TensorSpec&, const std::vector<TensorSpec>& parts, bool bf16, float* out, ExitCode nonfinite) const;

  const CheckpointReader& reader_;
  ModelConfig model_;
};

}  // namespace sestina
