// Moves chunks of files to and from buffers, several at a time: by io_uring where the system has it and allows it, else
// by threads that call pread and pwrite. The bytes are the same either way. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "io/store/output_file.hpp"

namespace sestina {

// The alignment of offsets, sizes and memory that transfers past the page cache need: no disk has larger sectors.
constexpr std::size_t block_alignment = 4096;

class ChunkEngine {
 public:
  virtual ~ChunkEngine() = default;
  struct Chunk {
    int slot = 0;  // number of the buffer, and the name of the transfer
    bool writes = false;
    std::uint64_t offset = 0;  // in the file
    std::size_t begin = 0;     // in the buffer
    std::size_t bytes = 0;
    std::byte* buffer = nullptr;  // aligned; null: that of the slot
    int file = -1;                // descriptor; below 0: the engine's own
  };
  struct Done {
    int slot = 0;
    std::int64_t moved = 0;  // bytes, or -errno
  };
  // Submits a transfer, which starts at the next take() at the latest: several in one system call cost less than one by
  // one.
  virtual void submit(const Chunk&) = 0;
  // Takes the next transfer that has ended; with `wait` it waits for one. Returns false when none has ended, or none is
  // under way.
  virtual bool take(Done&, bool wait) = 0;
  virtual std::string name() const = 0;
};

// The buffers of the slots, one after the other.
struct ChunkBuffers {
  std::byte* data = nullptr;
  std::size_t slots = 0, bytes = 0;  // bytes: those of one buffer
  std::byte* of(const ChunkEngine::Chunk& chunk) const {
    return (chunk.buffer != nullptr ? chunk.buffer : data + static_cast<std::size_t>(chunk.slot) * bytes) + chunk.begin;
  }
};

// Makes an engine on io_uring; null where it is not compiled in or the system forbids it, and `why` then says so.
// notice: what the engine lacks.
std::unique_ptr<ChunkEngine> make_chunk_ring(int file, const ChunkBuffers&, int depth, std::string& why,
                                             std::string& notice);
// Makes an engine of at most `depth` threads.
std::unique_ptr<ChunkEngine> make_chunk_pool(int file, const ChunkBuffers&, int depth);
bool chunk_ring_compiled();  // for `sestina info`

// The progress of the transfer of one chunk, and the rule for a short or failed one, which is the same for all that
// move chunks.
struct ChunkProgress {
  enum class Next { done, more, failed };

  std::size_t moved = 0;      // bytes; whole blocks until it is done
  int again = 0, failed = 0;  // in a row without progress; errors of the disk in a row

  // Returns what to do after a `result` of the engine, bytes or -errno. more: submit what is after `moved`: a transfer
  // that stops early goes on from the last whole block, one that failed for a passing reason is made again after a
  // pause, and so is one with EIO a few times. failed: `why` gives the reason. needed: the bytes with which the
  // transfer is done. patience bounds passing errors by its time, null: by their number.
  Next take(std::int64_t result, std::size_t needed, std::string& why, Retry* patience = nullptr);
};

// A chunk engine works on an open file and buffers, and past or through the page cache. Where the system refuses the
// faster way, the other one is taken, and a notice says so.

using ChunkNotice = std::function<void(const std::string& message)>;  // empty: nothing is said
using ChunkMemory = std::unique_ptr<std::byte, void (*)(void*)>;

// Rounds bytes up to the next multiple of block_alignment.
constexpr std::size_t padded_to_blocks(std::size_t bytes) {
  return (bytes + block_alignment - 1) / block_alignment * block_alignment;
}

// Opens a file and returns the descriptor, or -1 with errno. flags and mode: see open(2). direct: transfers go past the
// page cache; false afterwards where the file system has no O_DIRECT (EINVAL).
int open_chunk_file(const std::string& path, int flags, unsigned mode, bool& direct, const ChunkNotice&);
// Lets the transfers of an open file go through the page cache, where the file system refuses them otherwise although
// it opened the file.
void leave_direct(const std::string& path, int file, const ChunkNotice&);
// Makes the memory of buffers.slots buffers of buffers.bytes and puts it into buffers.data. Error(unavailable).
ChunkMemory make_chunk_memory(ChunkBuffers& buffers);
// Makes an engine for `depth` >= 1 transfers under way. ring: by io_uring where the system has it, else by threads.
// path: for notices.
std::unique_ptr<ChunkEngine> make_chunk_engine(const std::string& path, int file, const ChunkBuffers&, int depth,
                                               bool ring, const ChunkNotice&);
// Takes [offset, offset + bytes) out of the page cache; bytes 0: all after offset. wrote: writes it to the disk first,
// since dirty pages would stay. Returns 0 or errno of that write, which is reported nowhere else.
int forget_pages(int file, std::uint64_t offset, std::uint64_t bytes, bool wrote);

}  // namespace sestina
