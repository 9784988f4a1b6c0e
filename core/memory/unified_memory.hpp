// Memory of the host that a device uses where it lies, by the same addresses (the tier "unified"): for machines on
// which the two share their memory (GB10) or a link that keeps caches coherent (GH200). State in it is never copied to
// other addresses. It is managed memory of CUDA whose preferred place is the host's memory, with the device among those
// that access it: kernels may read and write it there, and what is said about pages is advice that changes no number.
// Blocks of it go through a pager as those of other tiers: before their use their pages are asked for on the device,
// and after it back in host memory, so that no more than optimizer.refresh.device_bytes are asked for at a time. Why
// managed memory and not pages of the system: devices that cannot walk the system's page tables have it too. Where the
// host computes there is no such memory, since all of its memory is that. Twins: unified_memory_cuda.cpp,
// unified_memory_none.cpp. No Kokkos.
#pragma once
#include <cstddef>
#include <memory>

namespace sestina {

// Returns whole pages, which hold anything. Error(unavailable) where the device cannot use memory at the same time as
// the host (concurrentManagedAccess), and on a device without it here.
std::shared_ptr<std::byte> unified_memory(std::size_t bytes);
// Returns whether a block lies in memory from unified_memory().
bool is_unified(const std::shared_ptr<std::byte>& block);

// Asks, in the order of a queue (a CUDA stream), for pages of unified memory on a device, or with host_memory in that
// of the host. Whole blocks: no other block has bytes in their pages.
inline constexpr int host_memory = -1;
void ask_for_pages(const std::byte* block, std::size_t bytes, int device, void* queue);

}  // namespace sestina
