// Blocks of state: the memory at their addresses, the store in which they lie between their uses, and where each is
// on its way between the two. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/error.hpp"

namespace sestina {

// A store keeps blocks of memory somewhere else between their uses: a tier below host memory, as it looks from above.
// The files that implement it lie in io/store.

// Bytes that are moved at a time, and the memory that a store takes for its buffers.
inline constexpr std::size_t store_chunk_bytes = std::size_t{128} << 10;
inline std::size_t store_buffer_bytes(int queue_depth) {
  return 2 * static_cast<std::size_t>(queue_depth) * store_chunk_bytes;
}

class BlockStore {
 public:
  virtual ~BlockStore() = default;

  // Adds a place for a block of so many bytes; the name is for messages. All calls come before open().
  virtual std::size_t add(const std::string& name, std::size_t bytes) = 0;
  // Makes room for all places at once. Error(cannot_create) with numbers when there is not enough.
  virtual void open() = 0;

  // The movement of one block, in either direction. `memory` holds as many bytes as its place.
  struct Transfer {
    std::size_t block = 0;
    std::byte* memory = nullptr;
    bool writes = false;
    std::string error = {};  // "" = done; it names the block
    ExitCode code = ExitCode::done;
    bool same = false;        // of a write: the place has these bytes already, so that nothing is written
    std::uint64_t moved = 0;  // set by the store: bytes that went to or came from the file
    bool ok() const { return error.empty(); }
  };
  // The source of transfers, which is told that one has ended, in any order, well or not. A transfer belongs to the
  // queue, and stays until then.
  class Queue {
   public:
    virtual ~Queue() = default;
    virtual Transfer* next(bool writes) = 0;  // the next one in this direction; null: there is none for now
    virtual void ended(Transfer&) = 0;
  };
  // Runs transfers at the same time, reads before writes, and asks for more while some are under way; returns when none
  // is left. What is written counts as written only as a whole; what is read and is not what was written is an error
  // (bad_data). One thread at a time may call it.
  virtual void serve(Queue&) = 0;
  void run(std::span<Transfer>);  // runs these by serve()

  struct Traffic {
    std::uint64_t bytes_read = 0, bytes_written = 0;  // bytes that went to or came from the file
    std::uint64_t bytes_same = 0;                     // not written: the file has them already
  };
  virtual Traffic traffic() const = 0;
  virtual std::string describe() const = 0;                       // file and way of transfer, for the log
  virtual bool is_in_memory(std::size_t) const { return false; }  // whether a block's place is memory of the host
  virtual void warn(const std::string& message) const = 0;        // writes to the log
  // Returns the name of the tier that a block's place is in, for traces.
  virtual const char* tier(std::size_t block) const { return is_in_memory(block) ? "host" : "nvme"; }
};

inline void BlockStore::run(std::span<Transfer> transfers) {
  struct All final : Queue {
    explicit All(std::span<Transfer> transfers) : all(transfers) {}
    Transfer* next(bool writes) override {
      while (at[writes] < all.size() && all[at[writes]].writes != writes) ++at[writes];
      return at[writes] < all.size() ? &all[at[writes]++] : nullptr;
    }
    void ended(Transfer&) override {}
    std::span<Transfer> all;
    std::size_t at[2] = {0, 0};  // the next one to look at, by direction
  };
  All all(transfers);
  serve(all);
}

// The state of one block on its way between host memory and a tier below it, and the events that it allows:
//
//   clean -> computing -> ready -> dirty -> writing -> on_nvme -> reading -> clean
//
// The states are those that Asteria gives an inverse factor (a result becomes visible where its optimizer says).
// BlockTier is pure: it moves nothing. An event that a state does not allow is an internal error: pages are never
// dropped while dirty, nothing is computed into a block that is being read, and nothing is read over one that is in
// use.
enum class BlockState : std::uint8_t {
  clean,      // in memory, as it was read
  computing,  // in memory, in use
  ready,      // in memory, perhaps changed
  dirty,      // in memory, perhaps changed, about to leave
  writing,    // on its way out
  on_nvme,    // its pages are dropped
  reading,    // on its way in
};
enum class BlockEvent : std::uint8_t {
  use,      // a user begins to read and write it; there may be several
  look,     // a user begins that leaves it as it is
  claim,    // a user begins that needs nothing of what it held
  release,  // one of the users has ended
  evict,    // it is to leave memory
  write,
  written,
  read,
  arrived,
  failed,  // the transfer under way has failed
};

std::string_view name(BlockState);
std::string_view name(BlockEvent);

class BlockTier {
 public:
  BlockState state() const { return state_; }
  int users() const { return users_; }
  bool in_memory() const { return state_ != BlockState::on_nvme; }
  bool changed() const { return changed_; }  // since it was read or written; false: the tier below has the same
  bool allows(BlockEvent) const;
  void apply(BlockEvent);

 private:
  BlockState state_ = BlockState::ready;
  int users_ = 0;
  bool changed_ = false;
};

// The memory at the addresses of blocks of state (pager.hpp): addresses stay, memory comes and goes. On a host these
// are the pages of the system. A device with memory of its own has it mapped at addresses that are reserved; twins:
// device_blocks_cuda.cpp, device_blocks_none.cpp (hosts, and devices that map no memory here).

// Returns zeros in whole pages of their own, none of which takes memory before it is written.
std::shared_ptr<std::byte> page_memory(std::size_t bytes);
std::size_t whole_pages(std::size_t bytes);  // bytes of memory that page_memory() takes

// Returns addresses of a device, without memory as yet. Error(unavailable) where a device maps none.
std::shared_ptr<std::byte> device_addresses(std::size_t bytes);
// The size of the pieces in which memory is mapped there.
inline constexpr std::size_t device_page = std::size_t{2} << 20;
constexpr std::size_t whole_device_pages(std::size_t bytes) {
  return (bytes + device_page - 1) / device_page * device_page;
}

// The memory of blocks, each known by its first address. Any thread may call, for one block one at a time.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  virtual std::size_t whole(std::size_t bytes) const = 0;  // bytes of memory that a block of so many takes
  // Sets the bytes that are in use at a time. Memory of blocks that have gone may be kept for others, as long as all
  // memory together is no more than that.
  virtual void keep(std::size_t most) = 0;
  virtual void add(const std::shared_ptr<std::byte>& block) = 0;  // before the first use of any
  // Gives memory to a block that has none; zero: it is set to zeros, else it holds anything. Error(unavailable) when
  // there is no more.
  virtual void come(std::byte* block, std::size_t bytes, bool zero) = 0;
  virtual void go(std::byte* block, std::size_t bytes) = 0;  // nobody uses or moves the block
  // Notes that all work that has been queued so far may use the block.
  virtual void used(const std::byte* block) = 0;
  // Adds a queue of work that uses blocks (a CUDA stream; null: none). Called before the first use of any block.
  virtual void watch(void* queue) = 0;
};
std::shared_ptr<BlockMemory> host_block_memory();

// Blocks of a device, and copies of them that go on during its work.
class DeviceBlocks : public BlockMemory {
 public:
  // Returns zeros in host memory that the device copies from and to by itself.
  virtual std::shared_ptr<std::byte> pinned(std::size_t bytes) = 0;
  // A copy is known by a number below most_copies, one at a time each. start_out waits for all work that used() notes.
  static constexpr int most_copies = 8;
  virtual void start_out(int copy, const std::byte* block, std::byte* host, std::size_t bytes) = 0;
  virtual void start_in(int copy, const std::byte* host, std::byte* block, std::size_t bytes) = 0;
  // A block in unified memory (unified_memory.hpp) is not copied: come() asks for its pages on the device, and this for
  // them in host memory, after all work that used() notes. It has the number of a copy and ends as one does. A start_in
  // of 0 bytes ends when the pages that come() asked for are there.
  virtual void start_back(int copy, const std::byte* block, std::size_t bytes) = 0;
  virtual bool is_done(int copy) = 0;
};
// Returns the blocks of the device that this thread computes on. Error(unavailable) where it maps none.
std::shared_ptr<DeviceBlocks> make_device_blocks();

}  // namespace sestina
