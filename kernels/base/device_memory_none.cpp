#include "kernels/base/device_memory.hpp"

namespace sestina {

DeviceMemory device_memory() { return {}; }
std::string device_bus_id() { return ""; }
void prepare_device_libraries() {}
std::string device_identity() { return ""; }

}  // namespace sestina
