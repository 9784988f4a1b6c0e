#include "io/store/chunk_engine.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "kernels/base/error.hpp"

namespace sestina {

constexpr int most_again = 20;  // transfers of a chunk in a row that move nothing
constexpr int most_failed = 3;  // attempts in a row that end with EIO

ChunkProgress::Next ChunkProgress::take(std::int64_t result, std::size_t needed, std::string& why, Retry* patience) {
  if (result < 0) {
    const auto error = static_cast<int>(-result);
    const bool final = error == EIO          ? ++failed > most_failed
                       : patience != nullptr ? !patience->again(error)
                                             : !may_pass(error) || ++again > most_again;
    if (final) {
      why = std::strerror(error);
      return Next::failed;
    }
    if (error != EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return Next::more;
  }
  const std::size_t before = moved;
  moved += static_cast<std::size_t>(result);
  if (moved >= needed) return Next::done;
  moved = moved / block_alignment * block_alignment;
  again = moved > before ? 0 : again + 1;
  if (moved > before) failed = 0;
  if (again <= most_again) return Next::more;
  why = "nothing more is moved";
  return Next::failed;
}

namespace {

void say_chunk_notice(const ChunkNotice& notice, const std::string& message) {
  if (notice) notice(message);
}

void say_no_direct(const std::string& path, const ChunkNotice& notice) {
  say_chunk_notice(notice,
                   fmt::format("{}: its file system has no O_DIRECT: read and written through the page cache", path));
}

}  // namespace

int open_chunk_file(const std::string& path, int flags, unsigned mode, bool& direct, const ChunkNotice& notice) {
  int file = -1;
  if (direct) file = ::open(path.c_str(), flags | O_DIRECT, mode);
  if (file >= 0 || (direct && errno != EINVAL)) return file;
  if (direct) say_no_direct(path, notice);
  direct = false;
  return ::open(path.c_str(), flags, mode);
}

void leave_direct(const std::string& path, int file, const ChunkNotice& notice) {
  say_no_direct(path, notice);
  const int flags = ::fcntl(file, F_GETFL);
  if (flags >= 0) ::fcntl(file, F_SETFL, flags & ~O_DIRECT);
}

ChunkMemory make_chunk_memory(ChunkBuffers& buffers) {
  ChunkMemory memory(static_cast<std::byte*>(std::aligned_alloc(block_alignment, buffers.slots * buffers.bytes)),
                     std::free);
  if (!memory) fail(ExitCode::unavailable, "no memory for {} buffers of {} KiB", buffers.slots, buffers.bytes / 1024);
  buffers.data = memory.get();
  return memory;
}

std::unique_ptr<ChunkEngine> make_chunk_engine(const std::string& path, int file, const ChunkBuffers& buffers,
                                               int depth, bool ring, const ChunkNotice& notice) {
  std::unique_ptr<ChunkEngine> engine;
  std::string why, without;
  if (ring) engine = make_chunk_ring(file, buffers, depth, why, without);
  if (!without.empty()) say_chunk_notice(notice, fmt::format("{}: {}", path, without));
  if (engine) return engine;
  engine = make_chunk_pool(file, buffers, depth);
  if (!why.empty()) say_chunk_notice(notice, fmt::format("{}: {}; {} read and write it", path, why, engine->name()));
  return engine;
}

int forget_pages(int file, std::uint64_t offset, std::uint64_t bytes, bool wrote) {
  int error = 0;
  do {
    error = wrote && ::fdatasync(file) != 0 ? errno : 0;
  } while (error == EINTR);
  ::posix_fadvise(file, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
  return error;
}

}  // namespace sestina
