#include "kernels/base/device_memory.hpp"

namespace sestina {

bool built_for_devices() { return false; }
DeviceMemory device_memory() { return {}; }
std::string device_bus_id() { return ""; }
void prepare_device_libraries() {}
std::string device_identity() { return ""; }

}  // namespace sestina
