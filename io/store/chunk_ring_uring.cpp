// io_uring through liburing. Its twin is chunk_ring_absent.cpp.
#include <liburing.h>
#include <sys/resource.h>

#include <cstring>

#include "io/store/chunk_engine.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

class ChunkRing final : public ChunkEngine {
 public:
  ChunkRing(int file, const ChunkBuffers& buffers, const io_uring& ring)
      : file_(file), buffers_(buffers), ring_(ring) {}
  ~ChunkRing() override { io_uring_queue_exit(&ring_); }
  ChunkRing(const ChunkRing&) = delete;
  ChunkRing& operator=(const ChunkRing&) = delete;

  // Pins the buffers' pages once instead of at every transfer; that counts against the limit of locked memory.
  bool register_buffers() {
    iovec all{buffers_.data, buffers_.slots * buffers_.bytes};
    registered_ = io_uring_register_buffers(&ring_, &all, 1) == 0;
    return registered_;
  }

  void submit(const Chunk& chunk) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    SESTINA_REQUIRE(entry != nullptr, "more chunks than the queue has room for");
    std::byte* memory = buffers_.of(chunk);
    const auto bytes = static_cast<unsigned>(chunk.bytes);
    const int file = chunk.file < 0 ? file_ : chunk.file;
    const bool fixed = registered_ && chunk.buffer == nullptr;
    if (fixed && chunk.writes)
      io_uring_prep_write_fixed(entry, file, memory, bytes, chunk.offset, 0);
    else if (fixed)
      io_uring_prep_read_fixed(entry, file, memory, bytes, chunk.offset, 0);
    else if (chunk.writes)
      io_uring_prep_write(entry, file, memory, bytes, chunk.offset);
    else
      io_uring_prep_read(entry, file, memory, bytes, chunk.offset);
    io_uring_sqe_set_data64(entry, static_cast<std::uint64_t>(chunk.slot));
    ++under_way_;
    ++prepared_;
  }

  bool take(Done& done, bool wait) override {
    if (under_way_ == 0) return false;
    send();
    io_uring_cqe* entry = nullptr;
    int result = 0;
    do result = wait ? io_uring_wait_cqe(&ring_, &entry) : io_uring_peek_cqe(&ring_, &entry);
    while (result == -EINTR);
    if (result == -EAGAIN) return false;
    if (result < 0) fail(ExitCode::io_error, "io_uring: {}", std::strerror(-result));
    done = {static_cast<int>(io_uring_cqe_get_data64(entry)), entry->res};
    io_uring_cqe_seen(&ring_, entry);
    --under_way_;
    return true;
  }

  std::string name() const override { return registered_ ? "io_uring, registered buffers" : "io_uring"; }

 private:
  void send() {
    while (prepared_ > 0) {
      const int sent = io_uring_submit(&ring_);
      if (sent == -EINTR || sent == -EAGAIN || sent == -EBUSY) continue;
      if (sent < 0) fail(ExitCode::io_error, "io_uring: {}", std::strerror(-sent));
      prepared_ -= sent;
    }
  }

  int file_;
  ChunkBuffers buffers_;
  io_uring ring_;
  bool registered_ = false;
  int under_way_ = 0, prepared_ = 0;  // prepared: those under way that are not sent yet
};

}  // namespace

// The system refuses a ring with EPERM (a seccomp profile or kernel.io_uring_disabled) or ENOSYS (no such system call).
std::unique_ptr<ChunkEngine> make_chunk_ring(int file, const ChunkBuffers& buffers, int depth, std::string& why,
                                             std::string& notice) {
  io_uring ring;
  const int result = io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0);
  if (result < 0) {
    why = fmt::format("io_uring is not to be had here ({})", std::strerror(-result));
    return nullptr;
  }
  auto engine = std::make_unique<ChunkRing>(file, buffers, ring);
  if (!engine->register_buffers()) {
    rlimit limit{};
    ::getrlimit(RLIMIT_MEMLOCK, &limit);
    notice = fmt::format("buffers of {} KiB are not registered with io_uring: {} KiB may be locked (ulimit -l)",
                         buffers.slots * buffers.bytes / 1024, limit.rlim_cur / 1024);
  }
  return engine;
}

bool chunk_ring_compiled() { return true; }

}  // namespace sestina
