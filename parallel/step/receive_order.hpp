// All messages between the stages of a pipeline have one order, the same on every rank. A device may hold a message
// back until another one has ended, whichever group of ranks either belongs to: ranks that start theirs in different
// orders can wait for each other for ever (NCCL user guide, "Using multiple NCCL communicators concurrently").
//
// Messages are in the order of the actions that send them (PipelineSchedule::all). Each rank sends at its own actions,
// so what is left to say is when it starts its receives: before an action, those of all that earlier actions of other
// ranks have sent. The places of the schedule are counted in the same order, so the place of each is free by then.
// No Kokkos.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/plan/pipeline_schedule.hpp"

namespace sestina {

struct PipelineReceive {
  enum class What : std::uint8_t { activation, gradient, head, head_gradient };
  What what = What::activation;
  int stage = 0;  // the stage that receives
  int micro = 0;  // as in Action; for a head, the first one of its minibatch
  bool operator==(const PipelineReceive&) const = default;
};

// What a rank starts to receive before each of its actions in `all`, and last, after all of them. tied: the embedding
// of the first stage goes to the last one with the first micro-batch of each minibatch, and gradients of it come back.
using ReceiveLists = std::vector<std::vector<PipelineReceive>>;
ReceiveLists receive_order(const PipelineOptions&, std::span<const Action> all, int rank, bool tied);

// Returns the forward passes that an asynchronous pipeline starts with, of all ranks, in an order that every dependency
// allows.
std::vector<Action> forwards_ahead(const PipelineSchedule&);

}  // namespace sestina
