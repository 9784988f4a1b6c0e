#include "core/memory/blocks.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/base/error.hpp"

namespace sestina {

namespace {

using enum BlockState;

struct Transition {
  BlockState from;
  BlockEvent event;
  BlockState to;
};
constexpr std::array transitions = {
    Transition{clean, BlockEvent::use, computing},     Transition{ready, BlockEvent::use, computing},
    Transition{dirty, BlockEvent::use, computing},     Transition{computing, BlockEvent::use, computing},
    Transition{clean, BlockEvent::look, computing},    Transition{ready, BlockEvent::look, computing},
    Transition{dirty, BlockEvent::look, computing},    Transition{computing, BlockEvent::look, computing},
    Transition{clean, BlockEvent::claim, computing},   Transition{ready, BlockEvent::claim, computing},
    Transition{dirty, BlockEvent::claim, computing},   Transition{on_nvme, BlockEvent::claim, computing},
    Transition{computing, BlockEvent::release, ready},  // the last user
    Transition{clean, BlockEvent::evict, dirty},       Transition{ready, BlockEvent::evict, dirty},
    Transition{dirty, BlockEvent::write, writing},     Transition{writing, BlockEvent::written, on_nvme},
    Transition{writing, BlockEvent::failed, ready},    Transition{on_nvme, BlockEvent::read, reading},
    Transition{reading, BlockEvent::arrived, clean},   Transition{reading, BlockEvent::failed, on_nvme},
};

std::optional<BlockState> after(BlockState from, BlockEvent event) {
  for (const Transition& t : transitions)
    if (t.from == from && t.event == event) return t.to;
  return std::nullopt;
}

}  // namespace

std::string_view name(BlockState state) {
  static constexpr std::string_view names[] = {"clean", "computing", "ready", "dirty", "writing", "on_nvme", "reading"};
  return names[static_cast<int>(state)];
}

std::string_view name(BlockEvent event) {
  static constexpr std::string_view names[] = {"use",   "look",    "claim", "release", "evict",
                                               "write", "written", "read",  "arrived", "failed"};
  return names[static_cast<int>(event)];
}

bool BlockTier::allows(BlockEvent event) const { return after(state_, event).has_value(); }

void BlockTier::apply(BlockEvent event) {
  const std::optional<BlockState> to = after(state_, event);
  SESTINA_REQUIRE(to.has_value(), "a block that is {} cannot take {}", name(state_), name(event));
  const bool writes = event == BlockEvent::use || event == BlockEvent::claim;
  if (writes || event == BlockEvent::look) ++users_;
  if (writes) changed_ = true;
  if (event == BlockEvent::written || event == BlockEvent::arrived) changed_ = false;
  if (event == BlockEvent::release && --users_ > 0) return;
  state_ = *to;
}

namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

// Memory in pages of the system. Pages that nobody has written are zeros, and take no memory. Those of a small block
// that has gone are moved to the next one of its size: given back to the system, they would come again one by one, each
// as zeros first, which takes longer than reading them. Large blocks have large pages.
class HostPages final : public BlockMemory {
 public:
  std::size_t whole(std::size_t bytes) const override { return whole_pages(bytes); }
  void keep(std::size_t most) override { most_ = most; }
  void add(const std::shared_ptr<std::byte>&) override { kept_.reserve(++blocks_); }
  void come(std::byte* block, std::size_t bytes, bool zero) override {
    const std::lock_guard lock(mutex_);
    const std::size_t size = whole_pages(bytes);
    in_use_ += size;
    if (zero || !take(block, size)) trim();
  }
  void go(std::byte* block, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const std::size_t size = whole_pages(bytes);
    in_use_ -= size;
    if (size >= huge_page) return give_back({block, size});
    kept_.push_back({block, size});
    kept_bytes_ += size;
    trim();
  }
  void used(const std::byte*) override {}
  void watch(void*) override {}

 private:
  struct Pages {
    std::byte* block = nullptr;  // the block that has gone
    std::size_t size = 0;
  };
  // Takes the block's own pages, if still there, or those of another one. False: there are none, or none can be moved.
  bool take(std::byte* block, std::size_t size) {
    auto from = std::find_if(kept_.begin(), kept_.end(), [block](const Pages& p) { return p.block == block; });
    if (from == kept_.end()) {
      from = std::find_if(kept_.begin(), kept_.end(), [size](const Pages& p) { return p.size == size; });
      constexpr int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
      if (from == kept_.end() || ::mremap(from->block, size, size, flags, block) != block) return false;
    }
    kept_.erase(from);
    kept_bytes_ -= size;
    return true;
  }
  static void give_back(const Pages& pages) { ::madvise(pages.block, pages.size, MADV_DONTNEED); }
  void trim() {
    while (!kept_.empty() && in_use_ + kept_bytes_ > most_) {
      give_back(kept_.front());
      kept_bytes_ -= kept_.front().size;
      kept_.erase(kept_.begin());
    }
  }

  std::mutex mutex_;  // between users and the thread that moves blocks
  std::vector<Pages> kept_;
  std::size_t blocks_ = 0;
  std::size_t most_ = 0, in_use_ = 0, kept_bytes_ = 0;
};

}  // namespace

std::shared_ptr<BlockMemory> host_block_memory() { return std::make_shared<HostPages>(); }

std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// Uses pages of 2 MiB, as far as they lie inside: a transfer past the page cache is in one piece instead of one for
// each 4 KiB, which decides how fast some disks are. The rest stays in small pages, so that no block takes more memory
// than its own.
std::shared_ptr<std::byte> page_memory(std::size_t bytes) {
  const std::size_t size = std::max(whole_pages(bytes), whole_pages(1));
  const std::size_t mapped = size < huge_page ? size : size + huge_page;
  void* memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail(ExitCode::unavailable, "no {} bytes of addresses: {}", mapped, std::strerror(errno));
  const auto unmap = [memory, mapped](std::byte*) { ::munmap(memory, mapped); };
  if (size < huge_page) return {static_cast<std::byte*>(memory), unmap};
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + huge_page - 1) / huge_page * huge_page;
  auto* const aligned = reinterpret_cast<std::byte*>(begin);
  ::madvise(aligned, size / huge_page * huge_page, MADV_HUGEPAGE);  // the system may ignore it
  return {aligned, unmap};
}

}  // namespace sestina
