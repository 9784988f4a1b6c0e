// Puts a weight in another form than dense together in host memory: checkpoints of other runs are read through it. No
// Kokkos.
#pragma once
#include <cstddef>
#include <vector>

#include "core/layout/weight_form.hpp"

namespace sestina {

// Writes tensor `spec` of the dense model, whole, as float32 (rows, cols) to out. parts: the tensors that it is made of
// in the form of the model, in order, and their values as a checkpoint has them; empty where a part that may be absent
// is absent. bf16: the run that trained it computed with rounded masters. Kokkos must run. Fences.
void make_dense(const ModelConfig&, const TensorSpec& spec, const std::vector<TensorSpec>& parts,
                std::vector<std::vector<std::byte>> values, bool bf16, float* out);

}  // namespace sestina
