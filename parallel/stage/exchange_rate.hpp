// The rate at which ranks send each other data from the memory that they compute in. No Kokkos.
#pragma once
#include "core/deck/options.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// Returns the GB/s that every rank sends to the next one while it receives from the one before. Collective.
double exchange_gbs(RunOptions::Space, Communicator& world);

}  // namespace sestina
