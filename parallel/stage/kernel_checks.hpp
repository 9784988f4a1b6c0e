// The kernels of a deck on this rank, and what ranks send each other, compared with their plain references. The bodies
// are typed; arguments and results are not.
#pragma once
#include <vector>

#include "core/check/kernel_check.hpp"
#include "core/deck/options.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// Returns the checks of core/check/checker.hpp in the deck's space and type.
std::vector<KernelCheck> check_kernels(const Options&);

// From now on the host decomposes what is in a device's memory, for whoever has found that the device's library is
// wrong here. Returns false where it does so already, or there is no device.
bool leave_decompositions_to_host();

// Sends, gathers and sums whole numbers in the memory of the deck's space among all ranks of the world, and returns
// what this rank has received, like other kernels; nothing for one rank. Collective.
std::vector<KernelCheck> check_exchanges(const Options&, Communicator& world);

}  // namespace sestina
