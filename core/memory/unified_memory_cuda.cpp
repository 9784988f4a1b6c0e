#include "core/memory/unified_memory.hpp"

#include <cuda.h>

#include <algorithm>

#include "core/memory/blocks.hpp"
#include "kernels/base/cuda_driver.hpp"
#include "kernels/base/cuda_queue.hpp"

namespace sestina {
namespace {

// The type of what frees it tells unified memory from other memory.
struct FreeUnified {
  void operator()(std::byte* at) const { cudaFree(at); }
};

CUdeviceptr address_of(const std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); }

CUmemLocation place_of(int device) {
  if (device == host_memory) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

int require_concurrent_access() {
  int device = 0, concurrent = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  check_cuda(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, device),
             "asking for an attribute");
  if (concurrent == 0)
    fail(ExitCode::unavailable,
         "optimizer.refresh.tier, optimizer.state_tier: \"unified\" on device {}, which cannot use managed memory at "
         "the same time as the host (concurrentManagedAccess is 0); allowed: \"device\", \"host\", \"nvme\"",
         device);
  return device;
}

}  // namespace

std::shared_ptr<std::byte> unified_memory(std::size_t bytes) {
  const int device = require_concurrent_access();
  const std::size_t whole = whole_pages(std::max<std::size_t>(bytes, 1));
  void* memory = nullptr;
  check_cuda(cudaMallocManaged(&memory, whole), "unified memory for optimizer state");
  const std::shared_ptr<std::byte> block(static_cast<std::byte*>(memory), FreeUnified());
  // By the names that CUDA 12 and 13 both have.
  check_driver(
      cuMemAdvise_v2(address_of(block.get()), whole, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place_of(host_memory)),
      "advice on where unified memory lies");
  check_driver(cuMemAdvise_v2(address_of(block.get()), whole, CU_MEM_ADVISE_SET_ACCESSED_BY, place_of(device)),
               "advice on who uses unified memory");
  return block;
}

bool is_unified(const std::shared_ptr<std::byte>& block) { return std::get_deleter<FreeUnified>(block) != nullptr; }

void ask_for_pages(const std::byte* block, std::size_t bytes, int device, void* queue) {
  check_driver(cuMemPrefetchAsync_v2(address_of(block), whole_pages(bytes), place_of(device), 0,
                                     static_cast<cudaStream_t>(queue)),
               "asking for pages of unified memory");
}

}  // namespace sestina
