// Work of an execution space and of a group, one behind the other in the queue of a device, without the host between
// them. On a host, and in groups that know no queues, the host waits: the same code, and an order that is there
// already.
#pragma once
#include "kernels/blas/queue_of.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// What the group starts from now on begins when all that the space has to do so far is complete. True: the host has not
// waited for it. label: of the wait.
template <class Exec>
bool start_after(const Exec& exec, Communicator& group, const char* label) {
  if (group.start_after(queue_of(exec))) return true;
  exec.fence(label);
  return false;
}

}  // namespace sestina
