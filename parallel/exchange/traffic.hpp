// What one step sends. Each exchange is declared once, in the file of this folder that is named for it: the memory that
// it takes, by which parallel/stage and parallel/comm allocate, and what it sends. A plan adds the declarations up.
// What takes no memory of its own is declared in traffic.cpp. No Kokkos.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parallel/plan/make_plan.hpp"

namespace sestina {

// Adds up the collectives of one rank after the other, and keeps of each kind what the busiest rank takes part in.
class Traffic {
 public:
  // See Collective. No calls are no collective.
  void add(const char* operation, const char* group, const char* what, std::int64_t count, std::int64_t bytes);
  void end_rank();
  std::vector<Collective> take() { return std::move(all_); }

 private:
  std::vector<Collective> rank_, all_;
};

// What declarations have in common. Sizes are those of tensor-parallel rank 0, whose shards are the largest.
TensorSpec largest_shard(const TensorSpec&, const PlanInput&);
// Return how often gradients are summed over data-parallel ranks in a step, and how often weights go out: with
// train.lookahead once more, moved on (core/optimizer/lookahead.hpp).
std::int64_t reductions_of_step(const PlanInput&);
std::int64_t times_sent(const PlanInput&);

// Returns the collectives of one step by kind, as the busiest rank takes part in them; a group of one rank sends
// nothing.
std::vector<Collective> collectives(const Plan&);

// Returns the bytes that one rank sends for a collective, with rings and direct exchanges.
double sent_bytes(const Collective&, const Plan&);

// Returns the bytes that the messages of all ranks carry to other nodes for a collective (node_traffic.cpp). Bulk data
// of data-parallel groups takes the ways of parallel/comm/nodes.hpp; what the library adds up or gathers is counted as
// a ring of its ranks, or of one rank of each node where the group works in two levels. The result is empty where
// parallel.node_size does not say what a node is, and for the messages of a pipeline.
std::optional<double> between_nodes_bytes(const Collective&, const PlanInput&);

}  // namespace sestina
