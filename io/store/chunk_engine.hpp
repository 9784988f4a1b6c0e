// Chunks of files moved to and from buffers, several at a time: by io_uring where the system has it and allows it,
// else by threads that call pread and pwrite. The same bytes either way. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "io/store/output_file.hpp"

namespace sestina {

// What transfers past the page cache demand of offsets, sizes and memory: no disk has larger sectors.
constexpr std::size_t block_alignment = 4096;

class ChunkEngine {
 public:
  virtual ~ChunkEngine() = default;
  struct Chunk {
    int slot = 0;  // of the buffer, and the name of the transfer
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
  // It is on its way at the next take() at the latest: several in one call of the system cost less than one by one.
  virtual void submit(const Chunk&) = 0;
  // The next one that has ended; with `wait` it is waited for. False: none has, or none is under way.
  virtual bool take(Done&, bool wait) = 0;
  virtual std::string name() const = 0;
};

// Buffers of the slots, one after the other.
struct ChunkBuffers {
  std::byte* data = nullptr;
  std::size_t slots = 0, bytes = 0;  // bytes of one
  std::byte* of(const ChunkEngine::Chunk& chunk) const {
    return (chunk.buffer != nullptr ? chunk.buffer : data + static_cast<std::size_t>(chunk.slot) * bytes) + chunk.begin;
  }
};

// Null where io_uring is not compiled in or the system forbids it; `why` then says so. notice: what it does without.
std::unique_ptr<ChunkEngine> make_chunk_ring(int file, const ChunkBuffers&, int depth, std::string& why,
                                             std::string& notice);
// Threads, at most `depth` of them.
std::unique_ptr<ChunkEngine> make_chunk_pool(int file, const ChunkBuffers&, int depth);
bool chunk_ring_compiled();  // for `sestina info`

// How far the transfer of one chunk has come, and what is done about a short or failed one. One way for all that move
// chunks.
struct ChunkProgress {
  enum class Next { done, more, failed };

  std::size_t moved = 0;      // bytes; whole blocks until it is done
  int again = 0, failed = 0;  // in a row without progress; errors of the disk in the same way

  // What follows from `result` of the engine, bytes or -errno: a transfer that stops early goes on from the last whole
  // block (more: submit what is after `moved`), one that failed for a passing reason is made again after a pause, so
  // is one with EIO a few times. needed: bytes with which it is done. patience: bounds passing errors by its time,
  // null: by their number. failed: `why` says it.
  Next take(std::int64_t result, std::size_t needed, std::string& why, Retry* patience = nullptr);
};

// What a chunk engine works on: the open file, the buffers, the engine itself and the page cache behind it. Where the
// system refuses the faster way, the other one is taken, and a notice says so.

using ChunkNotice = std::function<void(const std::string& message)>;  // empty: nothing is said
using ChunkMemory = std::unique_ptr<std::byte, void (*)(void*)>;

// Bytes up to the next multiple of block_alignment.
constexpr std::size_t padded_to_blocks(std::size_t bytes) {
  return (bytes + block_alignment - 1) / block_alignment * block_alignment;
}

// The descriptor, -1 with errno. flags and mode: as of open(2). direct: past the page cache; false afterwards where the
// file system has no O_DIRECT (EINVAL).
int open_chunk_file(const std::string& path, int flags, unsigned mode, bool& direct, const ChunkNotice&);
// Lets the transfers of an open file go through the page cache, where the file system refuses them otherwise although
// it opened the file.
void leave_direct(const std::string& path, int file, const ChunkNotice&);
// Makes the memory of buffers.slots buffers of buffers.bytes and puts it into buffers.data. Error(unavailable).
ChunkMemory make_chunk_memory(ChunkBuffers& buffers);
// For `depth` >= 1 transfers under way. ring: by io_uring where the system has it, else by threads. path: for notices.
std::unique_ptr<ChunkEngine> make_chunk_engine(const std::string& path, int file, const ChunkBuffers&, int depth,
                                               bool ring, const ChunkNotice&);
// Takes [offset, offset + bytes) out of the page cache; bytes 0: all after offset. wrote: writes it to the disk first,
// since dirty pages would stay. 0 or errno of that write, which nobody else is told of.
int forget_pages(int file, std::uint64_t offset, std::uint64_t bytes, bool wrote);

}  // namespace sestina
