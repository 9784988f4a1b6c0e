// Devices that have memory of their own: how much is free, and which one it is. No Kokkos.
#pragma once
#include <cstdint>
#include <string>

namespace sestina {

struct DeviceMemory {
  std::uint64_t free_bytes = 0;  // of the device that this process computes on; 0: it has no memory of its own
  int devices = 0;               // that this process sees
};
DeviceMemory device_memory();
// Where on the bus the device lies that this process computes on, "00000000:3B:00.0"; "": there is none.
std::string device_bus_id();

}  // namespace sestina
