#include "app/start/memory_check.hpp"

#include "app/start/kokkos_session.hpp"
#include "core/field_piece.hpp"
#include "kernels/base/device_memory.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

namespace {

bool on_device(const Options& options) {
  return !Kokkos::SpaceAccessibility<Host, Device::memory_space>::accessible &&
         options.run.space == RunOptions::Space::device;
}

// Ranks of a node share its devices as evenly as they can.
MemoryShare device_share(int node_ranks) {
  const DeviceMemory memory = device_memory();
  if (memory.devices == 0) return {"the device", memory.free_bytes};
  const int sharers = (node_ranks + memory.devices - 1) / memory.devices;
  return {"the device", memory.free_bytes / static_cast<std::uint64_t>(sharers)};
}

std::string size_text(std::uint64_t bytes) {
  return bytes < 100000000 ? fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6)
                           : fmt::format("{:.2f} GB", gb(bytes));
}

}  // namespace

void require_memory(const RankMemory& memory, const MemoryShare& host, const MemoryShare& device) {
  const ModelSize& size = memory.size;
  const bool has_device = device.bytes > 0;
  const auto require = [&](const MemoryShare& share, std::uint64_t need) {
    if (share.bytes == 0 || need <= share.bytes) return;
    fail(ExitCode::unavailable,
         "the run needs {} of memory, {} has {} available: weights {:.2f}, master weights {:.2f}, "
         "gradients {:.2f}, optimizer {:.2f}, activations {:.2f}, workspace {:.2f}, pipeline stash {:.2f}, "
         "exchanges {:.2f}{}{}, refresh workers {:.2f}, checkpoint copy {:.2f}; a smaller train.micro_batch or "
         "train.recompute = true shrinks the activations{}",
         size_text(need), share.name, size_text(share.bytes), gb(size.weights), gb(size.master), gb(size.gradients),
         gb(size.optimizer), gb(size.activations), gb(size.workspace), gb(size.stash), gb(size.exchanges),
         has_device ? "; on the host" : "",
         memory.host_tier > 0 ? fmt::format(", preconditioners {:.2f}", gb(memory.host_tier)) : "", gb(memory.workers),
         gb(memory.checkpoint),
         memory.checkpoint > field_stream_bytes ? ", checkpoint.async = false saves without the copy" : "");
  };
  if (has_device) require(device, size.total());
  require(host, has_device ? memory.on_host() : memory.total());
}

int planned_threads(const Options& options, int sharers) {
  return on_device(options) ? 0
                            : session_threads(options.run.threads, {}, sharers, options.optimizer.refresh_workers());
}

PlannedRun plan_that_fits(const Options& options, int rank, int ranks, int node_ranks) {
  PlannedRun run{make_plan({options, ranks}), {}};
  const int threads = planned_threads(options, node_ranks);
  run.memory = rank_memory(run.plan, threads, options.checkpoint.async)[static_cast<std::size_t>(rank)];
  require_memory(run.memory, available_memory(node_ranks, threads + options.optimizer.refresh_workers()),
                 on_device(options) ? device_share(node_ranks) : MemoryShare{"the device", 0});
  return run;
}

}  // namespace sestina
