// Groups whose messages lie in the memory of devices. No Kokkos.
#pragma once
#include <memory>
#include <string>

#include "parallel/comm/communicator.hpp"

namespace sestina {

// Returns the same group, whose exchanges and single messages may also lie in device memory, whose contents must be
// complete when they start (stream_order.hpp). All other calls still take host memory. A group split from it is of the
// same kind. Collective.
//
// Its twins: through NCCL (device_communicator_nccl.cpp) where each rank has a device of its own; through_host in CUDA
// builds without NCCL, and where ranks share a device, which NCCL refuses; the group itself in host builds.
std::unique_ptr<Communicator> on_device(std::unique_ptr<Communicator>);

// Groups that are made from now on take no library of the devices (NCCL): for whoever has found that it is wrong here.
// Returns false where they do not take one. Collective.
bool leave_to_host(Communicator& world);

// Exists in CUDA builds alone: device memory goes to the group as it is where MPI can read it, else over pinned host
// memory.
std::unique_ptr<Communicator> through_host(std::unique_ptr<Communicator>);

std::string nccl_version();  // the version of the library, "2.28.9"; "none" without it

}  // namespace sestina
