// What transformers wants next to the weights to encode text and to end a generation. No Kokkos.
#pragma once
#include <string>

#include "core/deck/model_config.hpp"
#include "io/tokenizer/special_tokens.hpp"

namespace sestina {

// Copies tokenizer.json and what lies next to it (its configuration, special tokens, chat template) into the folder.
void copy_tokenizer(const std::string& tokenizer, const std::string& folder);

// Sets the ids of begin, end and padding that config does not name, and those that the deck names on purpose. Without a
// begin of its own a text begins with the end of the one before.
void name_special_tokens(const TokenSources&, ModelConfig& config);

// Copies the tokenizer, writes a tokenizer_config.json where there is none, and names the special tokens.
void write_hf_tokenizer(const std::string& folder, const std::string& tokenizer, ModelConfig& config);

std::string generation_json(const ModelConfig&);  // generation_config.json

}  // namespace sestina
