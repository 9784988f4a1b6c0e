// What a chunk engine works on: the open file, the buffers, the engine itself and the page cache behind it. Where the
// system refuses the faster way, the other one is taken, and a notice says so. No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "io/store/chunk_engine.hpp"

namespace sestina {

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
