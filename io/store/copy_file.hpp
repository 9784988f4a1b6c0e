// Copies a whole file as blocks of state are moved: by a chunk engine, past the page cache where the file systems can,
// with a fixed amount of memory whatever the file's size. No Kokkos.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "core/memory/blocks.hpp"
#include "io/store/chunk_engine.hpp"
#include "io/store/digest.hpp"

namespace sestina {

struct CopyOptions {
  int queue_depth = 16;     // chunks under way at a time, reads and writes together; >= 1
  bool direct = true;       // copies past the page cache, where the file systems can
  bool ring = true;         // uses io_uring, where the system has it
  ChunkNotice notice = {};  // told of what the system refuses
  // Tests wrap the engine to change its results.
  std::function<std::unique_ptr<ChunkEngine>(std::unique_ptr<ChunkEngine>)> wrap = {};
};
// The bytes moved at a time; a copy takes queue_depth buffers of so many, fewer for a small file.
constexpr std::size_t copy_chunk_bytes = 2 * store_chunk_bytes;

// Gives `to`, in a folder that is there, the bytes of the regular file `from`, which must not be written meanwhile;
// what `to` was before is lost. Returns the size and digest of what was read, for the caller to compare. The copy is
// not durable yet: the caller syncs it. Errors that may pass are tried again (io/store/output_file.hpp).
// Error(io_error) with path and reason: a file cannot be opened, read, written or closed; Error(unavailable): no memory
// for the buffers. `to` is empty then. After a kill `to` may have its whole length with any part of the bytes missing:
// only the digest tells whether it is whole.
FileDigest copy_whole_file(const std::string& from, const std::string& to, const CopyOptions& = {});

}  // namespace sestina
