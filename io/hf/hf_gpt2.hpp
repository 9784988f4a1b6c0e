// GPT-2's tensors: q, k and v are one, and products are stored input by output (transformers' Conv1D), the transpose of
// what Linear layers and TensorSpec have. No Kokkos.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "core/deck/model_config.hpp"
#include "core/layout/tensor_spec.hpp"
#include "io/hf/safetensors.hpp"

namespace sestina {

// One tensor of a GPT-2 file: one tensor of TensorSpec, or three in a row.
struct Gpt2Tensor {
  std::string name;                // "transformer.h.0.attn.c_attn.weight"
  std::vector<std::string> parts;  // names of TensorSpec, in order
  bool transposed = false;
};
std::vector<Gpt2Tensor> gpt2_tensors(const ModelConfig&);  // config: gpt2_difference() is ""

// True where the file has GPT-2's names; the oldest files omit the leading "transformer.".
bool is_gpt2_file(const SafeTensors&);
std::string gpt2_table(const SafeTensors&);  // the file's name for the table of tokens
// Returns the names that such a file must have, as it writes them.
std::set<std::string> gpt2_names(const SafeTensors&, const ModelConfig&);

// Reads a tensor of TensorSpec as float32 into out (spec.elements()); Error(bad_data) when missing or of another shape.
void read_gpt2_tensor(const SafeTensors&, const TensorSpec&, float* out);

}  // namespace sestina
