// Devices that have memory of their own: how much is free, and which one it is. No Kokkos.
#pragma once
#include <cstdint>
#include <string>

namespace sestina {

struct DeviceMemory {
  std::uint64_t free_bytes = 0;  // free on the device that this process computes on; 0: it has no memory of its own
  int devices = 0;               // number of devices that this process sees
};
DeviceMemory device_memory();
// Returns the address on the bus of the device that this process computes on, "00000000:3B:00.0"; "" without a device.
std::string device_bus_id();
// Returns what the results of the device depend on: its name and the versions of its driver and run-time library; ""
// for a host. The null device of the tests (regression/null_device) is one by name, and computes nothing.
std::string device_identity();
inline bool computes_nothing(const std::string& identity) { return identity.rfind("null device", 0) == 0; }

}  // namespace sestina
