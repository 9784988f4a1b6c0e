// Keys of expert parallelism, and what it goes with; how tensor parallelism cuts an MLP.
#pragma once
#include "core/deck/options.hpp"

namespace sestina {

// Reads parallel.ep and parallel.expert_room; all else of the section has been read.
void read_expert_parallel(Deck&, const ModelConfig&, ParallelOptions&);

// Collects errors for options that training with parallel.ep > 1 conflicts with.
void require_expert_parallel(Deck&, const Options&);

// The same for biases of routers' choices (model.router_bias_rate).
void require_router_bias(Deck&, const Options&);

// Returns the first row of up_proj, which is a column of down_proj, of a tensor-parallel rank; of rank tp the number of
// all. Parts differ by one unit at most, and rank 0 has the most: a unit is 8 rows, which keeps products aligned, where
// these make up intermediate_size and each rank gets some, and else 1.
std::int64_t first_of_mlp(const ModelConfig&, int tp, int tp_rank);

}  // namespace sestina
