// Bits that flip in a message on purpose (SESTINA_FAULT), between its sender and the use of it. No Kokkos.
#pragma once
#include <memory>
#include <optional>

#include "core/planned_fault.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// What is to happen to the next message of gradients, or of weights, that this rank receives from another one.
struct MessageFlip {
  std::optional<BitFlip> next;  // tensor: even gradients, odd weights
};

// Leaves everything to the group, and the groups that are split from it, but for what `flip` asks for. Exchanges of
// device memory do not go through it.
std::unique_ptr<Communicator> with_flips(std::unique_ptr<Communicator> group, std::shared_ptr<MessageFlip> flip);

}  // namespace sestina
