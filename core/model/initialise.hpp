// First weights, as transformers' own initialisation: normal(0, initializer_range) for matrices and embeddings, one for
// norm weights, zero for biases. Every element is a pure function of (seed, HF name, index): no layout changes it.
#pragma once
#include <cstdint>

#include "core/layout/arena.hpp"

namespace sestina {

// Fills the weights that are computed with, and the master weights that are owned. Fences.
template <class Exec, class T>
void initialise(const Exec&, const Arena<Exec, T>&, const ModelConfig&, std::uint64_t seed);

// Writes rows [begin, end) of a tensor's shard to out (rows times columns). range is that of tensors that have none of
// their own. Fences.
template <class Exec, class A>
void initialise_rows(const Exec&, const TensorHolding&, std::int64_t begin, std::int64_t end, double range,
                     std::uint64_t seed, Vector<A, Exec> out);

}  // namespace sestina
