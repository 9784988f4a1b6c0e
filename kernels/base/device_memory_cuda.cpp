#include <cuda_runtime_api.h>

#include "kernels/base/device_memory.hpp"

namespace sestina {

DeviceMemory device_memory() {
  DeviceMemory memory;
  std::size_t free_bytes = 0, total = 0;
  if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess) memory.free_bytes = free_bytes;
  if (cudaGetDeviceCount(&memory.devices) != cudaSuccess) memory.devices = 0;
  return memory;
}

}  // namespace sestina
