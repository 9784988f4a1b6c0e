// What one step sends. No Kokkos.
#pragma once
#include <vector>

#include "core/options.hpp"
#include "core/plan.hpp"

namespace sestina {

// Collectives of one step by kind, as the busiest rank takes part in them; a group of one rank sends nothing.
std::vector<Collective> collectives(const Plan&, const Options&);

// Bytes that one rank sends for them, with rings and direct exchanges.
double sent_bytes(const Collective&, const Plan&);

}  // namespace sestina
