// Memory of devices that have their own. No Kokkos.
#pragma once
#include <cstdint>

namespace sestina {

struct DeviceMemory {
  std::uint64_t free_bytes = 0;  // of the device that this process computes on; 0: it has no memory of its own
  int devices = 0;               // that this process sees
};
DeviceMemory device_memory();

}  // namespace sestina
