// The keys of [model] that say what a configuration is, whatever it was read from: what a run stores in place of a
// folder's path, since the folder may change or go. No Kokkos.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/deck/model_config.hpp"

namespace sestina {

class Deck;

// "model.hidden_size" and its value as TOML; a deck with these alone reads back to the same sizes.
std::vector<std::pair<std::string, std::string>> model_keys(const ModelConfig&);
std::string model_section(const ModelConfig&);  // the same as text

// Where the deck has model.from_hf: its record, which dump() gives, holds the keys instead.
void record_model(Deck&, const ModelConfig&);

}  // namespace sestina
