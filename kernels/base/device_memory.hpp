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
// Sets what the libraries of a device read from the environment when they start, where the user has not: called before
// anything asks for a device. Ranks that wait for each other in kernels would wait for ever where a kernel is loaded at
// its first launch, which waits for the device (CUDA's guide: lazy loading), where operations of several communicators
// begin in different orders, or where a queue stands behind another for want of connections.
void prepare_device_libraries();
// Returns what the results of the device depend on: its name and the versions of its driver and run-time library; ""
// for a host. The null device of the tests (regression/null_device) is one by name, and computes nothing.
std::string device_identity();
inline bool computes_nothing(const std::string& identity) { return identity.rfind("null device", 0) == 0; }

}  // namespace sestina
