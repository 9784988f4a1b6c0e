// A build without devices: all memory is the host's.
#include "parallel/comm/device_communicator.hpp"

namespace sestina {

std::unique_ptr<Communicator> on_device(std::unique_ptr<Communicator> group) { return group; }
std::string nccl_version() { return "none"; }

}  // namespace sestina
