// Keys of expert parallelism, and what it goes with.
#pragma once
#include "core/deck/options.hpp"

namespace sestina {

// Reads parallel.ep and parallel.expert_room; all else of the section has been read.
void read_expert_parallel(Deck&, const ModelConfig&, ParallelOptions&);

// Collects errors for options that training with parallel.ep > 1 conflicts with.
void require_expert_parallel(Deck&, const Options&);

// The same for biases of routers' choices (model.router_bias_rate).
void require_router_bias(Deck&, const Options&);

}  // namespace sestina
