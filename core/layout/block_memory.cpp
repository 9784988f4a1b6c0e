#include "core/layout/block_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

// Pages that nobody has written are zeros, and take no memory.
class HostPages final : public BlockMemory {
 public:
  std::size_t whole(std::size_t bytes) const override { return whole_pages(bytes); }
  void add(const std::byte*) override {}
  void come(std::byte*, std::size_t, bool) override {}
  void go(std::byte* block, std::size_t bytes) override { ::madvise(block, whole_pages(bytes), MADV_DONTNEED); }
  void used(const std::byte*) override {}
  void watch(void*) override {}
};

}  // namespace

std::shared_ptr<BlockMemory> host_block_memory() { return std::make_shared<HostPages>(); }

std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// Pages of 2 MiB, as far as they lie inside: a transfer past the page cache is in one piece instead of one for each 4
// KiB, which decides how fast some disks are. What is left stays in small pages, so that no block takes more memory
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
  ::madvise(aligned, size / huge_page * huge_page, MADV_HUGEPAGE);  // a wish
  return {aligned, unmap};
}

}  // namespace sestina
