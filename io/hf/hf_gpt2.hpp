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

// One tensor of a GPT-2 file: one of ours, or three side by side.
struct Gpt2Tensor {
  std::string name;                // "transformer.h.0.attn.c_attn.weight"
  std::vector<std::string> parts;  // ours, in order
  bool transposed = false;
};
std::vector<Gpt2Tensor> gpt2_tensors(const ModelConfig&);  // config: gpt2_difference() is ""

// Whether the file has GPT-2's names; the oldest files leave the leading "transformer." away.
bool is_gpt2_file(const SafeTensors&);
std::string gpt2_table(const SafeTensors&);  // its name for the table of tokens
// Names that such a file must have, as it writes them.
std::set<std::string> gpt2_names(const SafeTensors&, const ModelConfig&);

// One of our tensors as float32 into out (spec.elements()); Error(bad_data) when missing or of another shape.
void read_gpt2_tensor(const SafeTensors&, const TensorSpec&, float* out);

}  // namespace sestina
