// Memory behind the addresses of blocks of state (pager.hpp): addresses stay, memory comes and goes. On a host these
// are the pages of the system. A device with memory of its own has it mapped behind addresses that are reserved; twins:
// device_blocks_cuda.cpp, device_blocks_none.cpp (hosts, and devices that map no memory here). No Kokkos.
#pragma once
#include <cstddef>
#include <memory>

namespace sestina {

// Zeros in whole pages of their own, none of which takes memory before it is written.
std::shared_ptr<std::byte> page_memory(std::size_t bytes);
std::size_t whole_pages(std::size_t bytes);  // bytes of memory that page_memory() takes

// Addresses of a device, behind which there is no memory yet. Error(unavailable) where a device maps none.
std::shared_ptr<std::byte> device_addresses(std::size_t bytes);
// What maps memory there comes in pieces of this size.
inline constexpr std::size_t device_page = std::size_t{2} << 20;
constexpr std::size_t whole_device_pages(std::size_t bytes) {
  return (bytes + device_page - 1) / device_page * device_page;
}

// Of blocks that are known by their first address. From any thread, of one block one at a time.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  virtual std::size_t whole(std::size_t bytes) const = 0;  // bytes of memory that a block of so many takes
  // What is in use at a time, in bytes. Memory of blocks that have gone may be kept for others, as much as all takes
  // no more than that.
  virtual void keep(std::size_t most) = 0;
  virtual void add(const std::byte* block) = 0;  // before the first use of any
  // Puts memory behind a block that has none; zero: it is set to zeros, else it holds anything. Error(unavailable) when
  // there is no more.
  virtual void come(std::byte* block, std::size_t bytes, bool zero) = 0;
  virtual void go(std::byte* block, std::size_t bytes) = 0;  // nobody uses or moves it
  // All work that has been queued so far may use the block.
  virtual void used(const std::byte* block) = 0;
  // Work that uses blocks is queued there too (a CUDA stream; null: none). Before the first use of any.
  virtual void watch(void* queue) = 0;
};
std::shared_ptr<BlockMemory> host_block_memory();

// Blocks of a device, and copies of them that go on during its work.
class DeviceBlocks : public BlockMemory {
 public:
  // Zeros in host memory that the device copies from and to by itself.
  virtual std::shared_ptr<std::byte> pinned(std::size_t bytes) = 0;
  // Copies are known by a number below most_copies, one at a time each. Out: after all that used() speaks of.
  static constexpr int most_copies = 8;
  virtual void start_out(int copy, const std::byte* block, std::byte* host, std::size_t bytes) = 0;
  virtual void start_in(int copy, const std::byte* host, std::byte* block, std::size_t bytes) = 0;
  virtual bool is_done(int copy) = 0;
};
// Of the device that this thread computes on. Error(unavailable) where it maps none.
std::shared_ptr<DeviceBlocks> make_device_blocks();

}  // namespace sestina
