// Will the run fit? Compared before anything large is allocated.
#pragma once
#include <cstdint>

#include "core/options.hpp"

namespace sestina {

// Bytes that this machine can still give without swapping; 0 when it does not say.
std::uint64_t available_memory_bytes();

// Error(unavailable) with the numbers when this rank of a host run needs more memory than its share of what there is. A
// device's memory is its own: there the allocation itself says so.
void require_memory(const Options&, int rank = 0, int node_ranks = 1);

}  // namespace sestina
