#include "app/train/state_tier.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string_view>

#include "core/memory/device_store.hpp"
#include "io/store/block_file.hpp"

namespace sestina {
namespace {

std::shared_ptr<BlockStore> make_file(const RefreshOptions& refresh, const std::string& run_dir, int rank) {
  const std::string folder = refresh.path.empty() ? run_dir + "/store" : refresh.path;
  return std::make_shared<BlockFile>(BlockFile::Options{.path = fmt::format("{}/rank_{:05}.blocks", folder, rank),
                                                        .queue_depth = refresh.queue_depth,
                                                        .most = static_cast<std::uint64_t>(refresh.nvme_bytes)});
}

// Of preconditioners of a device, those of the tier "host" by their names, "/optimizer/<HF name>/<field>".
std::shared_ptr<Pager> make_device_tier(const MatrixOptions& matrix, const RefreshOptions& refresh,
                                        std::shared_ptr<BlockStore> file) {
  std::shared_ptr<DeviceBlocks> device = make_device_blocks();
  const DeviceStore::Options setting{
      .in_host =
          [matrix](std::string_view name) { return matrix.tier_of(name.substr(name.rfind('/') + 1)) == Tier::host; },
      .host_bytes = static_cast<std::size_t>(refresh.host_bytes),
      .warn = [](const std::string& message) { spdlog::warn("{}", message); }};
  auto store = std::make_shared<DeviceStore>(device, std::move(file), setting);
  return std::make_shared<Pager>(std::move(store),
                                 Pager::Options{.most = static_cast<std::size_t>(refresh.device_bytes),
                                                .timeout = refresh.timeout,
                                                .key = "optimizer.refresh.device_bytes"},
                                 std::move(device));
}

}  // namespace

std::shared_ptr<Pager> make_tier(const Options& options, const std::string& run_dir, int rank, MemorySpace memory) {
  if (!options.optimizer.matrix || !options.optimizer.matrix->pages_any(memory)) return nullptr;
  const MatrixOptions& matrix = *options.optimizer.matrix;
  const RefreshOptions& refresh = options.optimizer.refresh;
  std::shared_ptr<BlockStore> file = matrix.has_tier(Tier::nvme) ? make_file(refresh, run_dir, rank) : nullptr;
  if (memory == MemorySpace::device) return make_device_tier(matrix, refresh, std::move(file));
  return std::make_shared<Pager>(std::move(file), Pager::Options{.most = static_cast<std::size_t>(refresh.host_bytes),
                                                                 .timeout = refresh.timeout});
}

void open_tier(Pager& pager) {
  pager.open();
  spdlog::info("preconditioners in {}; at most {:.1f} MiB of them in memory", pager.describe(),
               static_cast<double>(std::min(pager.limit(), pager.bytes())) / (1 << 20));
}

std::shared_ptr<Pager> open_tier_of(Executor& executor, const Options& options, const std::string& run_dir, int rank,
                                    MemorySpace memory) {
  const std::shared_ptr<Pager> tier = make_tier(options, run_dir, rank, memory);
  if (!tier) return tier;
  for (PipelineStage* stage : executor.runs()) stage->optimizer_control().page_to(tier);
  open_tier(*tier);
  return tier;
}

}  // namespace sestina
