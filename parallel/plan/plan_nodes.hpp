// What one step sends from node to node. No Kokkos.
#pragma once
#include <optional>

#include "core/deck/options.hpp"
#include "core/layout/plan.hpp"

namespace sestina {

// Bytes that the messages of all ranks carry to other nodes for these collectives. Bulk data of data-parallel groups
// takes the ways of parallel/comm/node_levels.hpp; what the library adds up or gathers is counted as a ring of its
// ranks, or of one rank of each node where the group works in two levels. Not known where parallel.node_size does not
// say what a node is, and for the messages of a pipeline.
std::optional<double> between_nodes_bytes(const Collective&, const PlanInput&);

}  // namespace sestina
