#include "kernels/base/device_memory.hpp"

namespace sestina {

DeviceMemory device_memory() { return {}; }

}  // namespace sestina
