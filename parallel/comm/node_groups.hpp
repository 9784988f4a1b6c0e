// Collectives of a group whose ranks share nodes: inside each node first, then between one leader of each node, then
// inside each node again, so that the network carries one message for each node and not one for each rank. No Kokkos.
#pragma once
#include <memory>

#include "parallel/comm/communicator.hpp"

namespace sestina {

// The same group with barrier, all_reduce and broadcast in two levels where it spans several nodes with several ranks
// each; otherwise the group as it is. node_size: ranks that follow one another make a node of so many (tests act as
// several nodes with it); 0: those that share memory. Exchanges go directly from rank to rank either way, because their
// bytes are different for every pair; who makes them for bulk data asks node_levels.hpp for its ways.
std::unique_ptr<Communicator> with_node_groups(std::unique_ptr<Communicator>, int node_size);

}  // namespace sestina
