// The fp32 weights that a rank owns as few flat pieces, for numbers that are kept of each of them next to the state of
// an optimizer. Such numbers lie in checkpoints at "/optimizer/<HF name>/<field>", in the shape and the slabs of the
// weight, so that any layout reads them. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/memory/state_field.hpp"

namespace sestina {

struct WeightRun {  // weights that are adjacent, and the place of the numbers kept of them
  float* weights;
  std::size_t at, count;
};

// weights: fields of fp32 weights ("/model/<HF name>"), which always lie in memory. Error(internal): another type.
std::vector<WeightRun> weight_runs(const std::vector<StateField>& weights);
std::size_t weight_count(const std::vector<WeightRun>&);
// Returns the fields of numbers that are kept of these weights, one after another from `first` on.
std::vector<StateField> fields_of_weights(std::vector<StateField> weights, const float* first, const std::string& name);

}  // namespace sestina
