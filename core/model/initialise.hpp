// First weights, as transformers' own initialisation: normal(0, initializer_range) for matrices and embeddings, one for
// norm weights, zero for biases. Every element is a pure function of (seed, HF name, index): no layout changes it.
#pragma once
#include <cstdint>

#include "core/arena.hpp"

namespace sestina {

// Fills the master weights and rounds the compute weights. Fences.
template <class Exec, class T>
void initialise(const Exec&, const Arena<Exec, T>&, const ModelConfig&, std::uint64_t seed);

}  // namespace sestina
