// Work of an execution space and of a group that runs one after the other in the queue of a device, without the host
// between them. On a host, and in groups that know no queues, the host waits instead: the code is the same.
#pragma once
#include "kernels/blas/exec.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/nodes.hpp"

namespace sestina {

// Makes all that the group starts from now on begin when all that the space has to do so far is complete. Returns true
// where the host has not waited for that. label: the name of the host's wait.
template <class Exec>
bool start_after(const Exec& exec, Communicator& group, const char* label) {
  if (group.start_after(queue_of(exec))) return true;
  exec.fence(label);
  return false;
}

// Starts the second phase of a gather, if it has one that has not begun, after what the space has to do so far.
template <class Exec>
void go_on(const Exec& exec, Communicator& group, Gather& gather, const char* label) {
  if (!gather.finish_first_in(queue_of(exec))) return;
  start_after(exec, group, label);
  gather.start_second();
}

template <class Exec>
void finish(const Exec& exec, Communicator& group, Gather& gather, const char* label) {
  go_on(exec, group, gather, label);
  gather.finish_in(queue_of(exec));
}

}  // namespace sestina
