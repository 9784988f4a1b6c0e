// The bytes that each rank of a plan needs, by kind. No Kokkos.
#pragma once
#include <cstddef>
#include <vector>

#include "core/layout/model_size.hpp"
#include "parallel/plan/make_plan.hpp"

namespace sestina {

// The memory of one rank. A plan numbers ranks pipeline rank by pipeline rank, in each dp_rank * tp + tp_rank. Master
// weights and state are with the owners alone; where weights are computed in fp32 they are their own masters. Counted
// is all that a rank allocates for training on the host, but for tables of a few numbers for each tensor; the libraries
// of a device take scratch of their own instead of the host's.
struct RankMemory {
  ModelSize size;                    // its parameters are the elements whose state this rank keeps
  std::size_t saved = 0;             // state that the rank writes to a checkpoint
  std::size_t streamed = 0;          // the part of `saved` without a copy in memory (core/memory/state_field.hpp)
  std::size_t checkpoint = 0;        // memory of a save: the copy that it is written from, and pieces on their way
  std::int64_t scalar_elements = 0;  // elements that the elementwise rule updates
  std::size_t scalar_state = 0;      // bytes of their state
  // State in tiers: nvme is their place in the store on NVMe, nvme_moved its traffic in an update. The
  // optimizer's bytes in `size` hold only what is in memory at a time.
  std::size_t nvme = 0;
  double nvme_moved = 0;
  std::size_t outside_tiers = 0;  // preconditioners that stay in memory although others do not
  // With a device, host_tier is host memory for state of the tier "host" and buffers on the way to NVMe, and
  // link_moved the traffic of an update between host and device. workers: what refresh workers read and give, in pinned
  // pages, and their scratch.
  std::size_t host_tier = 0;
  double link_moved = 0;
  std::size_t workers = 0;
  // Bytes that asynchronous refreshes read of the device and give back in an update; also planned on a host, for the
  // device that [machine] describes.
  double refresh_moved = 0;
  std::size_t total() const { return size.total() + on_host(); }
  std::size_t on_host() const { return checkpoint + host_tier + workers; }  // for a rank that computes on a device
};
// Returns the memory of each rank. threads: those of a rank on the host, 0 = on a device. copies: saves copy what lies
// in memory (checkpoint.async).
std::vector<RankMemory> rank_memory(const Plan&, int threads, bool copies = true);

}  // namespace sestina
