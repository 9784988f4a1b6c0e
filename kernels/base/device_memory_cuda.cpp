#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "kernels/base/device_memory.hpp"

namespace sestina {

DeviceMemory device_memory() {
  DeviceMemory memory;
  std::size_t free_bytes = 0, total = 0;
  if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess) memory.free_bytes = free_bytes;
  if (cudaGetDeviceCount(&memory.devices) != cudaSuccess) memory.devices = 0;
  return memory;
}

std::string device_bus_id() {
  int device = 0;
  cudaDeviceProp properties;
  if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess) return "";
  char text[32];
  std::snprintf(text, sizeof text, "%08X:%02X:%02X.0", static_cast<unsigned>(properties.pciDomainID),
                static_cast<unsigned>(properties.pciBusID), static_cast<unsigned>(properties.pciDeviceID));
  return text;
}

void prepare_device_libraries() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

std::string device_identity() {
  int device = 0, driver = 0, library = 0;
  cudaDeviceProp properties;
  if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess) return "";
  if (cudaDriverGetVersion(&driver) != cudaSuccess || cudaRuntimeGetVersion(&library) != cudaSuccess) return "";
  return fmt::format("{}, driver {}, CUDA {}", properties.name, driver, library);
}

}  // namespace sestina
