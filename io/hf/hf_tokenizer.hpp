// What transformers wants beside the weights to encode text and to end a generation. No Kokkos.
#pragma once
#include <string>

#include "core/deck/model_config.hpp"

namespace sestina {

// Copies tokenizer.json into the folder, with the tokenizer_config.json that lies beside it or else a new one, and sets
// the ids of the begin and the end of a text that config does not name. Without a begin of its own a text begins with
// the end of the one before.
void write_hf_tokenizer(const std::string& folder, const std::string& tokenizer, ModelConfig& config);

std::string generation_json(const ModelConfig&);  // generation_config.json

}  // namespace sestina
