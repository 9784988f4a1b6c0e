// What one step sends. No Kokkos.
#pragma once
#include <optional>
#include <vector>

#include "parallel/plan/make_plan.hpp"

namespace sestina {

inline constexpr std::int64_t f32_bytes = 4;  // of an element: gradients, masters and state in fp32

// What the trainer asks all ranks in each step: before the step and after its gradients, whether one of them votes to
// stop or to save; and after it, how long each phase took, with peak memory, ages of preconditioners (in a pipeline
// those of each stage too) and the energy of its node.
struct RunMessages {
  static constexpr int polls = 2, votes = 3, times = 14;  // fp64 numbers in each of the last two
  static constexpr int coherence = 2;  // where replicas drift: bytes sent, drift; synchronous: in a gather of its own
  static constexpr int ages = 3;       // of a stage
  static constexpr int numbers(int stages) { return times + (stages > 1 ? stages * ages : 0); }  // of a rank's step
};

// Numbers that a rank of an asynchronous pipeline tells the others of each step, in addition to those of the trainer:
// of each stage the squares of its gradient; its delay, how far its weights have moved, how large they are, and the
// cosine with the gradient at the newest ones; loss and flag.
struct StepNumbers {
  int stages = 1;
  constexpr int squares(int stage) const { return stage; }
  constexpr int delay(int stage) const { return stages + 4 * stage; }  // and three more
  constexpr int loss() const { return 5 * stages; }
  constexpr int flag() const { return 5 * stages + 1; }
  constexpr int count() const { return 5 * stages + 2; }
};

// Collectives of one step by kind, as the busiest rank takes part in them; a group of one rank sends nothing.
std::vector<Collective> collectives(const Plan&);

// Bytes that one rank sends for them, with rings and direct exchanges.
double sent_bytes(const Collective&, const Plan&);

// Bytes that the messages of all ranks carry to other nodes for these collectives (plan_nodes.cpp). Bulk data of
// data-parallel groups takes the ways of parallel/comm/node_levels.hpp; what the library adds up or gathers is counted
// as a ring of its ranks, or of one rank of each node where the group works in two levels. Not known where
// parallel.node_size does not say what a node is, and for the messages of a pipeline.
std::optional<double> between_nodes_bytes(const Collective&, const PlanInput&);

}  // namespace sestina
