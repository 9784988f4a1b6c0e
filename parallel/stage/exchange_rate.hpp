// What the ranks of this machine send each other from the memory that they compute in. No Kokkos.
#pragma once
#include "core/deck/options.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// GB/s that every rank sends to the next one while it receives from the one before. Collective.
double exchange_gbs(RunOptions::Space, Communicator& world);

}  // namespace sestina
