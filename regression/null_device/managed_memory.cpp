// Managed memory: the host's, of which a program asks for pages on the device and back. Where they are changes no
// number; it is counted, so that a program is seen to ask for what it uses, and for no more at a time than it says.
#include <cuda.h>

#include <algorithm>

#include "device.hpp"

namespace null_device {
namespace {

constexpr std::size_t granule = std::size_t{2} << 20;  // pages of the device
struct OnDevice {
  std::size_t bytes = 0;
  Order kernels;  // launched before its pages were asked for
};
std::map<const char*, OnDevice> on_device;  // by its first byte
std::size_t asked = 0, asked_peak = 0;      // in whole pages of the device

std::size_t whole(std::size_t bytes) { return (bytes + granule - 1) / granule * granule; }

// Whether a stretch is managed memory, in one allocation.
bool require_managed(const char* at, std::size_t bytes, const char* call) {
  const auto [begin, allocation] = find(at);
  const bool good = bytes > 0 && is_managed(at) && at + bytes <= begin + allocation->bytes;
  if (!good) problem(std::string(call) + " of something else than managed memory");
  return good;
}

}  // namespace

bool is_managed(const void* at) {
  Lock lock(dev().mutex);
  const Allocation* const found = find(at).second;
  return found != nullptr && found->type == cudaMemoryTypeManaged;
}

void count_managed_operand(const void* at) {
  auto next = on_device.upper_bound(static_cast<const char*>(at));
  const auto* const byte = static_cast<const char*>(at);
  const bool there = next != on_device.begin() && byte < std::prev(next)->first + std::prev(next)->second.bytes;
  count("managed operand", there ? "on the device" : "in host memory");
}

cudaError_t release_managed(void* at, const char* call) {
  Lock lock(dev().mutex);
  const auto* const begin = static_cast<const char*>(at);
  const char* const end = begin + find(at).second->bytes;
  for (auto next = on_device.lower_bound(begin); next != on_device.end() && next->first < end;) {
    asked -= whole(next->second.bytes);
    next = on_device.erase(next);
  }
  return release_host(at, call);
}

void add_peak_of_managed_memory() { dev().counts["peak"]["managed bytes asked for on the device"] = {1, asked_peak}; }

}  // namespace null_device

using namespace null_device;

extern "C" {

cudaError_t cudaMallocManaged(void** p, std::size_t n, unsigned) {
  return allocate_host(p, n, cudaMemoryTypeManaged, "cudaMallocManaged");
}

CUresult cuMemAdvise_v2(CUdeviceptr p, std::size_t bytes, CUmem_advise advice, CUmemLocation place) {
  Lock lock(dev().mutex);
  if (!require_managed(reinterpret_cast<const char*>(p), bytes, "cuMemAdvise")) return CUDA_ERROR_INVALID_VALUE;
  const bool host = place.type == CU_MEM_LOCATION_TYPE_HOST;
  count("advice", std::string(advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ? "lies in"
                              : advice == CU_MEM_ADVISE_SET_ACCESSED_BY      ? "used by"
                                                                             : "other: ") +
                      (host ? " the host" : " the device"));
  return CUDA_SUCCESS;
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr p, std::size_t bytes, CUmemLocation place, unsigned, CUstream stream) {
  Lock lock(dev().mutex);
  const auto* const at = reinterpret_cast<const char*>(p);
  if (!require_managed(at, bytes, "cuMemPrefetchAsync")) return CUDA_ERROR_INVALID_VALUE;
  const bool host = place.type == CU_MEM_LOCATION_TYPE_HOST;
  count("prefetch", host ? "to the host" : "to the device", bytes);
  const auto known = on_device.find(at);
  if (host && known == on_device.end()) {
    problem("cuMemPrefetchAsync to the host of memory that was not asked for on the device");
  } else if (host) {
    require_order_since(known->second.kernels, stream, "cuMemPrefetchAsync to the host");
    asked -= whole(known->second.bytes);
    on_device.erase(known);
  } else {
    asked += known == on_device.end() ? whole(bytes) : 0;
    asked_peak = std::max(asked_peak, asked);
    OnDevice& there = on_device[at] = {bytes, {}};
    for (const Stream* each : dev().streams) there.kernels[each] = each->kernels;
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
