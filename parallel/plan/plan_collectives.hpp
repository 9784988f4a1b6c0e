// The collectives of one step, and the bytes that they send. No Kokkos.
#pragma once
#include <optional>
#include <vector>

#include "parallel/plan/make_plan.hpp"

namespace sestina {

inline constexpr std::int64_t f32_bytes = 4;  // bytes of an element: gradients, masters and state are in fp32

// Returns the collectives of one step by kind, as the busiest rank takes part in them; a group of one rank sends
// nothing.
std::vector<Collective> collectives(const Plan&);

// Returns the bytes that one rank sends for a collective, with rings and direct exchanges.
double sent_bytes(const Collective&, const Plan&);

// Returns the bytes that the messages of all ranks carry to other nodes for a collective (plan_nodes.cpp). Bulk data of
// data-parallel groups takes the ways of parallel/comm/nodes.hpp; what the library adds up or gathers is counted as a
// ring of its ranks, or of one rank of each node where the group works in two levels. The result is empty where
// parallel.node_size does not say what a node is, and for the messages of a pipeline.
std::optional<double> between_nodes_bytes(const Collective&, const PlanInput&);

}  // namespace sestina
