// Virtual memory management of the driver: addresses that are reserved, memory that is mapped behind them. What is
// mapped holds what new memory holds, and what is unmapped is lost.
#include <cuda.h>
#include <fcntl.h>

#include <cstring>

#include "device.hpp"

using namespace null_device;

namespace {

constexpr std::size_t granule = std::size_t{2} << 20;

struct Reserved {
  std::size_t hole = 0, hole_bytes = 0;  // of the device's addresses that it was cut from
  std::size_t bytes = 0;
};
struct Handle {
  std::size_t bytes = 0;
  int mappings = 0;
};
struct Mapped {
  std::size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
};
std::map<std::size_t, Reserved> reserved;  // by offset
std::map<CUmemGenericAllocationHandle, Handle> handles;
std::map<std::size_t, Mapped> mapped;  // by offset
CUmemGenericAllocationHandle last_handle = 0;

std::size_t offset_of(CUdeviceptr at) { return static_cast<std::size_t>(reinterpret_cast<char*>(at) - dev().base); }

CUresult wrong(const char* text) {
  problem(text);
  return CUDA_ERROR_INVALID_VALUE;
}

// All of the mapped stretch around a mapping is one allocation, as a copy sees it.
void note_stretch(std::size_t offset) {
  auto first = mapped.find(offset);
  while (first != mapped.begin()) {
    const auto before = std::prev(first);
    if (before->first + before->second.bytes != first->first || reserved.contains(first->first)) break;
    first = before;
  }
  std::size_t end = first->first;
  for (auto next = first; next != mapped.end() && next->first == end && (next == first || !reserved.contains(end));
       ++next) {
    dev().memory.erase(dev().base + next->first);
    end += next->second.bytes;
  }
  Allocation whole{end - first->first, cudaMemoryTypeDevice, "mapped"};
  for (const Stream* stream : dev().streams) whole.kernels[stream] = stream->kernels;
  dev().memory[dev().base + first->first] = whole;
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  return *bytes = granule, CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* out, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long) {
  start();
  Lock lock(dev().mutex);
  if (bytes == 0 || bytes % granule != 0) return wrong("cuMemAddressReserve of no whole pieces");
  const std::size_t need = bytes + granule;
  for (auto hole = dev().holes.begin(); hole != dev().holes.end(); ++hole) {
    if (hole->second < need) continue;
    const auto [offset, length] = *hole;
    dev().holes.erase(hole);
    if (length > need) dev().holes[offset + need] = length - need;
    const std::size_t aligned = (offset + granule - 1) / granule * granule;
    reserved[aligned] = {offset, need, bytes};
    *out = reinterpret_cast<CUdeviceptr>(dev().base + aligned);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr at, std::size_t bytes) {
  Lock lock(dev().mutex);
  const auto found = reserved.find(offset_of(at));
  if (found == reserved.end() || found->second.bytes != bytes) return wrong("cuMemAddressFree of something else");
  const auto inside = mapped.lower_bound(found->first);
  if (inside != mapped.end() && inside->first < found->first + bytes)
    return wrong("cuMemAddressFree of addresses with memory behind them");
  dev().holes[found->second.hole] = found->second.hole_bytes;
  reserved.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* out, std::size_t bytes, const CUmemAllocationProp*,
                     unsigned long long) {
  Lock lock(dev().mutex);
  if (bytes == 0 || bytes % granule != 0) return wrong("cuMemCreate of no whole pieces");
  if (dev().in_use + bytes > dev().size) return CUDA_ERROR_OUT_OF_MEMORY;
  count("allocation", "cuMemCreate", bytes);
  dev().in_use += bytes;
  dev().peak = std::max(dev().peak, dev().in_use);
  handles[*out = ++last_handle] = {bytes};
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Lock lock(dev().mutex);
  count("free", "cuMemRelease");
  const auto found = handles.find(handle);
  if (found == handles.end() || found->second.mappings > 0) return wrong("cuMemRelease of something in use");
  dev().in_use -= found->second.bytes;
  handles.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, std::size_t bytes, std::size_t begin, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  Lock lock(dev().mutex);
  count("runtime", "cuMemMap");
  const std::size_t offset = offset_of(at);
  auto room = reserved.upper_bound(offset);
  const auto found = handles.find(handle);
  if (room == reserved.begin() || std::prev(room)->first + std::prev(room)->second.bytes < offset + bytes)
    return wrong("cuMemMap behind addresses that are not reserved");
  if (found == handles.end() || begin + bytes > found->second.bytes || found->second.mappings > 0)
    return wrong("cuMemMap of memory that is not free");
  if (mapped.contains(offset)) return wrong("cuMemMap where memory is mapped");
  ++found->second.mappings;
  mapped[offset] = {bytes, handle};
  if (dev().fill) std::memset(dev().shadow + offset, dev().fill, bytes);
  note_stretch(offset);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc*, std::size_t) {
  Lock lock(dev().mutex);
  reach(reinterpret_cast<const void*>(at), bytes, "cuMemSetAccess");
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, std::size_t bytes) {
  Lock lock(dev().mutex);
  count("runtime", "cuMemUnmap");
  const std::size_t begin = offset_of(at), end = begin + bytes;
  const auto stretch = find(reinterpret_cast<const void*>(at));
  if (stretch.second == nullptr || stretch.second->label != "mapped") return wrong("cuMemUnmap of something else");
  const auto first = static_cast<std::size_t>(stretch.first - dev().base);
  const std::size_t last = first + stretch.second->bytes;
  if (end > last) return wrong("cuMemUnmap beyond what is mapped");
  for (auto next = mapped.lower_bound(begin); next != mapped.end() && next->first < end; next = mapped.erase(next))
    --handles[next->second.handle].mappings;
  fallocate(dev().file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
            static_cast<off_t>(bytes));
  dev().memory.erase(stretch.first);
  if (first < begin) note_stretch(first);
  if (end < last) note_stretch(end);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS               ? "no error"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
                                              : "error (null device)";
  return CUDA_SUCCESS;
}

}  // extern "C"

namespace null_device {

void add_leaks_of_mapped_memory() {
  for (const auto& [handle, kept] : handles) {
    Count& c = dev().counts["leak"]["device: memory to be mapped"];
    ++c.calls;
    c.bytes += kept.bytes;
  }
}

}  // namespace null_device
