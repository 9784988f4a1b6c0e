// Chunks of files moved to and from buffers, several at a time: by io_uring where the system has it and allows it,
// else by threads that call pread and pwrite. The same bytes either way. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

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

}  // namespace sestina
