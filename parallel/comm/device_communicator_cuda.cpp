// A CUDA build without NCCL.
#include <utility>

#include "parallel/comm/device_communicator.hpp"

namespace sestina {

std::unique_ptr<Communicator> on_device(std::unique_ptr<Communicator> group) { return through_host(std::move(group)); }
bool leave_to_host(Communicator&) { return false; }
std::string nccl_version() { return "none"; }

}  // namespace sestina
