// Models as Hugging Face's transformers keeps them: a folder with config.json and safetensors. Names and shapes are
// those of TensorSpec, so weights are copied as they are; vectors have one dimension in the file. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/deck/model_config.hpp"
#include "core/layout/tensor_spec.hpp"
#include "io/hf/safetensors.hpp"

namespace sestina {

ModelConfig read_hf_config(const std::string& folder);  // Error(input_missing, bad_data)

// Opens the weights of `folder` and compares their names with what the model needs: missing and unknown tensors are one
// Error(bad_data) that lists them. Allowed in addition to the model's own: rotary_emb.inv_freq, and lm_head.weight when
// tied, with the values of the table: another one is an Error(bad_data).
SafeTensors open_hf_weights(const std::string& folder, const ModelConfig&);

// Reads one tensor as float32 into out (spec.elements()); Error(bad_data) when missing, of another shape, or with a
// value that is not finite. where names the folder in that message.
void read_hf_tensor(const SafeTensors&, const TensorSpec&, float* out, const std::string& where);

struct HfTensor {
  TensorSpec spec;
  const float* data = nullptr;  // host memory, spec.elements()
};
// Writes config.json, generation_config.json and the weights in float32 or bf16 (rounded to nearest even); a model of
// family gpt that is a GPT-2 is written as one. tokenizer: a tokenizer.json to copy as well (io/hf/hf_companions.hpp),
// "" none; its begin and end of a text go into the configs where the model names none. The tensors must be exactly
// those of the model.
void write_hf_model(const std::string& folder, const ModelConfig&, const std::vector<HfTensor>&, bool bf16,
                    const std::string& tokenizer = "");

}  // namespace sestina
