#include "io/store/copy_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "io/store/chunk_engine.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::uint64_t most_cached = std::uint64_t{64} << 20;  // bytes left in the page cache

// One of the two files of a copy.
class CopyEnd {
 public:
  CopyEnd(const std::string& path, int flags, const char* doing, const CopyOptions& options)
      : path_(path), doing_(doing), direct_(options.direct), notice_(options.notice) {
    file_ = retried(path, [&] { return open_chunk_file(path, flags | O_CLOEXEC, 0666, direct_, notice_); });
    if (file_ < 0) give_up("cannot be opened");
  }
  ~CopyEnd() {
    if (file_ >= 0) ::close(file_);
  }
  CopyEnd(const CopyEnd&) = delete;
  CopyEnd& operator=(const CopyEnd&) = delete;

  int get() const { return file_; }
  const std::string& path() const { return path_; }
  bool direct() const { return direct_; }
  void refuse_direct() {
    if (std::exchange(direct_, false)) leave_direct(path_, file_, notice_);
  }
  std::string problem(const std::string& why) const { return fmt::format("{}: {}: {}", path_, doing_, why); }
  [[noreturn]] void give_up(const char* what) const {  // the reason is errno
    const int error = errno;
    fail(ExitCode::io_error, "{}: {}: {}", path_, what, std::strerror(error));
  }
  void close_checked() {
    if (::close(std::exchange(file_, -1)) != 0) give_up("closing");
  }

 private:
  const std::string& path_;
  const char* doing_;
  bool direct_;
  const ChunkNotice& notice_;
  int file_ = -1;
};

// Chunk i goes through buffer i modulo their number: it is read, digested in the file's order, written. So at most as
// many transfers are under way as there are buffers, and the disks work while a chunk is digested.
class FileCopy {
 public:
  FileCopy(const std::string& from, const std::string& to, const CopyOptions& options)
      : options_(options),
        from_(from, O_RDONLY, "reading", options),
        size_(size_of_regular(from_)),
        to_(to, O_WRONLY | O_CREAT | O_TRUNC, "writing", options),
        patience_(to_.path()),
        memory_(nullptr, std::free) {
    SESTINA_REQUIRE(options.queue_depth >= 1, "queue depth {}", options.queue_depth);
  }

  FileDigest run() {
    if (size_ > 0 && make_room()) {
      make_engine();
      move_all();
    }
    if (problem_.empty()) end();
    if (!problem_.empty()) {
      // A part of a file is of no use, and its room is needed. If emptying it fails too, its digest tells.
      if (::ftruncate(to_.get(), 0) != 0) errno = 0;
      fail(ExitCode::io_error, "{}", problem_);
    }
    to_.close_checked();
    return {size_, digest_.hex()};
  }

 private:
  enum class Stage { empty, reads, read, writes };
  struct Slot {
    Stage stage = Stage::empty;
    std::uint64_t chunk = 0;
    bool direct = false;  // whether it was submitted past the page cache
    ChunkProgress progress;
  };

  static std::uint64_t size_of_regular(const CopyEnd& end) {
    struct stat status {};
    if (::fstat(end.get(), &status) != 0) end.give_up("reading");
    if (!S_ISREG(status.st_mode)) fail(ExitCode::io_error, "{}", end.problem("is not a regular file"));
    return static_cast<std::uint64_t>(status.st_size);
  }

  // Writes that lengthen a file go one by one on many file systems.
  bool make_room() {
    const std::uint64_t bytes = padded_to_blocks(size_);
    const bool room = reserve_all(to_.path(), to_.get(), bytes);
    if (!room || ::ftruncate(to_.get(), static_cast<off_t>(bytes)) != 0) problem_ = to_.problem(std::strerror(errno));
    return problem_.empty();
  }

  void make_engine() {
    chunks_ = (size_ + copy_chunk_bytes - 1) / copy_chunk_bytes;
    const auto most = static_cast<std::uint64_t>(options_.queue_depth);
    slots_.resize(static_cast<std::size_t>(std::min(chunks_, most)));
    buffers_ = {nullptr, slots_.size(), copy_chunk_bytes};
    memory_ = make_chunk_memory(buffers_);
    engine_ = make_chunk_engine(to_.path(), to_.get(), buffers_, static_cast<int>(slots_.size()), options_.ring,
                                options_.notice);
    if (options_.wrap) engine_ = options_.wrap(std::move(engine_));
  }

  // Ends when nothing is under way: the engine may not touch buffers that have gone.
  void move_all() {
    ChunkEngine::Done done;
    while (true) {
      read_ahead();
      bool any = false;
      while (engine_->take(done, false)) {
        ended(done);
        any = true;
      }
      if (any || pass_on()) continue;
      if (under_way_ == 0) return;
      if (engine_->take(done, true)) ended(done);
    }
  }

  Slot& slot_of(std::uint64_t chunk) { return slots_[static_cast<std::size_t>(chunk % slots_.size())]; }
  std::size_t bytes_of(std::uint64_t chunk) const {
    return static_cast<std::size_t>(std::min<std::uint64_t>(copy_chunk_bytes, size_ - chunk * copy_chunk_bytes));
  }

  void read_ahead() {
    while (problem_.empty() && asked_ < chunks_ && slot_of(asked_).stage == Stage::empty) {
      slot_of(asked_) = {Stage::reads, asked_, false, {}};
      submit(slot_of(asked_++));
    }
  }

  // Moves the next chunk of the file, if it has been read, on to its writing.
  bool pass_on() {
    if (!problem_.empty() || digested_ == chunks_ || slot_of(digested_).stage != Stage::read) return false;
    Slot& slot = slot_of(digested_);
    std::byte* buffer = buffers_.data + number_of(slot) * buffers_.bytes;
    const std::size_t bytes = bytes_of(digested_++);
    digest_.add(buffer, bytes);
    std::memset(buffer + bytes, 0, padded_to_blocks(bytes) - bytes);
    slot.stage = Stage::writes;
    slot.progress = {};
    submit(slot);
    return true;
  }

  std::size_t number_of(const Slot& slot) const { return static_cast<std::size_t>(&slot - slots_.data()); }
  CopyEnd& end_of(const Slot& slot) { return slot.stage == Stage::writes ? to_ : from_; }

  // Submits what is left of a slot's chunk, in whole blocks: a read then ends short at the end of the file.
  void submit(Slot& slot) {
    const CopyEnd& end = end_of(slot);
    slot.direct = end.direct();
    const std::size_t moved = slot.progress.moved;
    engine_->submit({.slot = static_cast<int>(number_of(slot)),
                     .writes = slot.stage == Stage::writes,
                     .offset = slot.chunk * copy_chunk_bytes + moved,
                     .begin = moved,
                     .bytes = padded_to_blocks(bytes_of(slot.chunk)) - moved,
                     .file = end.get()});
    ++under_way_;
  }

  void ended(const ChunkEngine::Done& done) {
    --under_way_;
    if (!problem_.empty()) return;
    Slot& slot = slots_[static_cast<std::size_t>(done.slot)];
    CopyEnd& end = end_of(slot);
    if (done.moved == -EINVAL && slot.direct) {  // some file systems refuse here what they granted at the opening
      end.refuse_direct();
      return submit(slot);
    }
    const bool writes = slot.stage == Stage::writes;
    const std::size_t bytes = bytes_of(slot.chunk);
    if (writes && done.moved > 0) patience_.went_well();
    std::string why;
    switch (
        slot.progress.take(done.moved, writes ? padded_to_blocks(bytes) : bytes, why, writes ? &patience_ : nullptr)) {
      case ChunkProgress::Next::failed:
        problem_ = end.problem(why);
        return;
      case ChunkProgress::Next::more:
        return submit(slot);
      case ChunkProgress::Next::done:
        slot.stage = writes ? Stage::empty : Stage::read;
    }
    if (writes && (cached_ += bytes) >= most_cached) forget();
  }

  // Takes files that go through the page cache out of it.
  void forget() {
    cached_ = 0;
    if (!from_.direct()) forget_pages(from_.get(), 0, 0, false);
    const int error = to_.direct() ? 0 : forget_pages(to_.get(), 0, 0, true);
    if (error != 0 && problem_.empty()) problem_ = fmt::format("{}: fsync: {}", to_.path(), std::strerror(error));
  }

  // Cuts off the padding of the last block.
  void end() {
    const auto size = static_cast<off_t>(size_);
    if (size_ % block_alignment != 0 && retried(to_.path(), [&] { return ::ftruncate(to_.get(), size); }) != 0)
      problem_ = to_.problem(std::strerror(errno));
    else if (size_ > 0)
      forget();
  }

  const CopyOptions& options_;
  CopyEnd from_;
  std::uint64_t size_;
  CopyEnd to_;
  Retry patience_;  // bounds errors of writes that may pass
  ChunkBuffers buffers_;
  ChunkMemory memory_;
  std::unique_ptr<ChunkEngine> engine_;
  std::vector<Slot> slots_;
  std::uint64_t chunks_ = 0, asked_ = 0, digested_ = 0, cached_ = 0;  // cached: bytes written since forget()
  int under_way_ = 0;
  Digest128 digest_;
  std::string problem_;  // the first problem
};

}  // namespace

FileDigest copy_whole_file(const std::string& from, const std::string& to, const CopyOptions& options) {
  return FileCopy(from, to, options).run();
}

}  // namespace sestina
