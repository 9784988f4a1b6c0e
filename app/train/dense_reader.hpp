// Reads dense weights of a checkpoint, in whatever form its run trained them, for export, evaluation, or a run in
// another form.
#pragma once
#include <string>
#include <vector>

#include "core/layout/weight_form.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace sestina {

// Returns the name of the optimizer's field, "/optimizer/<HF name>/<field>", that holds the asked weights: "trained"
// are the model's own ("" is returned), "ema" their mean (train.ema_tau), "average" that of kind = "schedule-free"; ""
// asks for the average where there is one, else for the trained ones. Error(bad_data): the checkpoint has no such
// weights.
std::string field_of_weights(const CheckpointReader&, const std::string& asked);
// Returns the place of a tensor's weights in a checkpoint, "/model/<HF name>" for the field "".
std::string place_of_weights(const std::string& tensor, const std::string& field);

class DenseReader {
 public:
  // Reads the weights that this field holds. The checkpoint must outlive it.
  explicit DenseReader(const CheckpointReader&, std::string field = "");

  const ModelConfig& model() const { return model_; }  // that of the checkpoint, with the form of its weights
  // Reads a tensor of the dense model, whole, as float32. Kokkos must run where the weight is in another form. A value
  // that is not finite is an Error(nonfinite).
  void read(const TensorSpec&, float* out, ExitCode nonfinite = ExitCode::bad_data) const;

 private:
  // Merges the parts of a weight. bf16: the run computed in bf16.
  void merge(const TensorSpec&, const std::vector<TensorSpec>& parts, bool bf16, float* out, ExitCode nonfinite) const;

  const CheckpointReader& reader_;
  std::string field_;
  ModelConfig model_;
};

}  // namespace sestina
