// Cosines and sines of the rotary embedding (Su et al. 2021), with Llama 3's scaling of the frequencies.
#pragma once
#include <vector>

#include "core/deck/model_config.hpp"

namespace sestina {

// Returns theta^(-2i/h), i < h/2, for heads of dimension h. Llama 3 (Dubey et al. 2024): waves longer than the old
// context / low_freq_factor are stretched by factor, those shorter than the old context / high_freq_factor are left,
// between them the frequency is blended. With partial_rotary_factor < 1 only the first r pairs turn, r = factor h/2, at
// frequencies from 1 down to 1 / theta, theta^(-i/(r-1)), i < r; those of the other pairs are 0 (modded-nanogpt).
std::vector<double> rope_frequencies(const ModelConfig&);

struct RopeTable {
  std::vector<float> cosine, sine;  // (sequence, h/2)
};
RopeTable rope_table(const ModelConfig&, int sequence);

}  // namespace sestina
