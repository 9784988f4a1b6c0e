// Blocks of memory kept somewhere else between their uses: what a tier below host memory looks like from above. The
// files that implement it lie in io/store. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/base/error.hpp"

namespace sestina {

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

}  // namespace sestina
