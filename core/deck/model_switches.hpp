// The keys of [model] that switch parts of a gpt on, and [model.init]. No Kokkos.
#pragma once
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/deck/model_config.hpp"

namespace sestina {

// The switches by name, as decks and the config.json of our own exports have them.
inline constexpr std::array switch_keys{"norm",
                                        "norm_gain",
                                        "qk_norm",
                                        "qk_norm_gain",
                                        "embedding_norm",
                                        "partial_rotary_factor",
                                        "attention_multiplier",
                                        "final_logit_softcapping",
                                        "softcapping_form",
                                        "head_bias"};

// Reads the switches of family gpt, which other families have at one value, and the first ranges by role. Family and
// sizes must have been read.
void read_switches(Deck&, ModelConfig&);
// Returns what keeps the switches from each other, and other families from having them.
std::vector<ModelDefect> switch_defects(const ModelConfig&);
// Adds the switches to the keys that a run stores, with values as TOML.
void add_switches(std::vector<std::pair<std::string, std::string>>& keys, const ModelConfig&);

}  // namespace sestina
