#include "app/train/state_tier.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "io/store/block_file.hpp"

namespace sestina {

std::shared_ptr<Pager> make_tier(const Options& options, const std::string& run_dir, int rank) {
  if (!options.optimizer.matrix || !options.optimizer.matrix->paged) return nullptr;
  const RefreshOptions& refresh = options.optimizer.refresh;
  const std::string folder = refresh.path.empty() ? run_dir + "/store" : refresh.path;
  auto file = std::make_shared<BlockFile>(BlockFile::Setting{.path = fmt::format("{}/rank_{:05}.blocks", folder, rank),
                                                             .queue_depth = refresh.queue_depth});
  return std::make_shared<Pager>(std::move(file), Pager::Setting{.most = static_cast<std::size_t>(refresh.host_bytes),
                                                                 .timeout = refresh.timeout});
}

void open_tier(Pager& pager, const Options& options) {
  const auto most = static_cast<std::size_t>(options.optimizer.refresh.nvme_bytes);
  if (most != 0 && pager.bytes() > most)
    fail(ExitCode::bad_deck, "optimizer.refresh.nvme_bytes: {} bytes are too few: preconditioners take {} in the store",
         most, pager.bytes());
  pager.open();
  spdlog::info("preconditioners in {}; at most {:.1f} MiB of them in memory", pager.describe(),
               static_cast<double>(std::min(pager.limit(), pager.bytes())) / (1 << 20));
}

}  // namespace sestina
