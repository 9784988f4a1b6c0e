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

// Blocks of memory kept somewhere else between their uses: what a tier below host memory looks like from above. The
// files that implement it lie in io/store.

// Moved at a time, and memory that a store takes for its buffers.
inline constexpr std::size_t store_chunk_bytes = std::size_t{128} << 10;
inline std::size_t store_buffer_bytes(int queue_depth) {
  return 2 * static_cast<std::size_t>(queue_depth) * store_chunk_bytes;
}

class BlockStore {
 public:
  virtual ~BlockStore() = default;

  // A place for a block of so many bytes; the name is for messages. All of them come before open().
  virtual std::size_t add(const std::string& name, std::size_t bytes) = 0;
  // Makes room for all places at once. Error(cannot_create) with numbers when there is not enough.
  virtual void open() = 0;

  // One block, in either direction. `memory` holds as many bytes as its place.
  struct Transfer {
    std::size_t block = 0;
    std::byte* memory = nullptr;
    bool writes = false;
    std::string error = {};  // "" = done; it names the block
    ExitCode code = ExitCode::done;
    bool same = false;  // of a write: the place has these bytes already, and only its end is told
    bool ok() const { return error.empty(); }
  };
  // Where transfers come from, and who hears that one has ended, in any order, well or not. A transfer belongs to the
  // queue, and stays until then.
  class Queue {
   public:
    virtual ~Queue() = default;
    virtual Transfer* next(bool writes) = 0;  // of this direction; null: there is none for now
    virtual void ended(Transfer&) = 0;
  };
  // Runs them side by side, reads before writes, and asks for more while some are under way; returns when nothing is
  // and there are no more. What is written counts as written only as a whole; what is read and is not what was written
  // is an error (bad_data). One thread at a time.
  virtual void serve(Queue&) = 0;
  void run(std::span<Transfer>);  // these, by serve()

  struct Traffic {
    std::uint64_t bytes_read = 0, bytes_written = 0;  // that went to or came from the file
    std::uint64_t bytes_same = 0;                     // not written: the file has them already
  };
  virtual Traffic traffic() const = 0;
  virtual std::string describe() const = 0;                       // file and way of transfer, for the log
  virtual bool is_in_memory(std::size_t) const { return false; }  // a block's place is memory of the host
  virtual void warn(const std::string& message) const = 0;        // to the log
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

// Where one block of state is on its way between host memory and a tier below it, and what may happen to it there:
//
//   clean -> computing -> ready -> dirty -> writing -> on_nvme -> reading -> clean
//
// after the states that Asteria gives an inverse factor (a result becomes visible where its optimizer says). Pure: it
// moves nothing. An event that a state does not allow is an internal error: pages are never dropped while dirty,
// nothing is computed into a block that is being read, and nothing is read over one that is in use.
enum class BlockState : std::uint8_t {
  clean,      // in memory, as it was read
  computing,  // in memory, in use
  ready,      // in memory, perhaps changed
  dirty,      // the same, about to leave
  writing,    // on its way out
  on_nvme,    // its pages are dropped
  reading,    // on its way in
};
enum class BlockEvent : std::uint8_t {
  use,      // somebody begins to read and write it; several may at a time
  look,     // the same, by one who leaves it as it is
  claim,    // the same, by one who needs nothing of what it held
  release,  // one of them has ended
  evict,    // it is to leave memory
  write,
  written,
  read,
  arrived,
  failed,  // the transfer under way
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

// Memory behind the addresses of blocks of state (pager.hpp): addresses stay, memory comes and goes. On a host these
// are the pages of the system. A device with memory of its own has it mapped behind addresses that are reserved; twins:
// device_blocks_cuda.cpp, device_blocks_none.cpp (hosts, and devices that map no memory here).

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
