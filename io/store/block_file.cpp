#include "io/store/block_file.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "io/store/output_file.hpp"

namespace sestina {
namespace {

constexpr double mib = 1.0 / (1 << 20);

}  // namespace

BlockFile::BlockFile(const Options& options) : options_(options), memory_(nullptr, std::free) {}

BlockFile::~BlockFile() {
  engine_.reset();
  if (file_ < 0) return;
  ::unlink(options_.path.c_str());
  ::close(file_);
}

std::size_t BlockFile::add(const std::string& name, std::size_t bytes) {
  SESTINA_REQUIRE(file_ < 0, "{} comes after the file was made", name);
  blocks_.push_back({name, bytes, size_, 0, std::vector<std::uint64_t>((bytes + chunk_bytes - 1) / chunk_bytes)});
  size_ += padded_to_blocks(bytes);
  return blocks_.size() - 1;
}

void BlockFile::open() {
  if (options_.most != 0 && size_ > options_.most)
    fail(ExitCode::bad_deck,
         "optimizer.refresh.nvme_bytes: {} bytes are too few: optimizer state takes {} in the store", options_.most,
         size_);
  create();
  choose_engine();
}

void BlockFile::create() {
  const std::string& path = options_.path;
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) fail(ExitCode::cannot_create, "{}: cannot be created: {}", folder.string(), error.message());
  constexpr int flags = O_RDWR | O_CREAT | O_CLOEXEC;
  direct_ = options_.direct;
  file_ = open_chunk_file(path, flags, 0600, direct_, [this](const std::string& message) { warn(message); });
  if (file_ < 0) fail(ExitCode::cannot_create, "{}: cannot be created: {}", path, std::strerror(errno));
  const auto give_up = [&](const std::string& why, bool ours) {
    if (ours) ::unlink(path.c_str());
    ::close(file_);
    file_ = -1;
    fail(ExitCode::cannot_create, "{}: {}", path, why);
  };
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0)
    give_up("another run keeps its state there (optimizer.refresh.path)", false);
  if (::ftruncate(file_, 0) != 0) give_up(std::strerror(errno), true);  // removes what a killed run has left
  struct statvfs disk {};
  ::fstatvfs(file_, &disk);
  const std::uint64_t free = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
  const auto no_room = [&](int reason) {
    give_up(fmt::format("{:.1f} MiB of state have no room on its disk, which has {:.1f} MiB free: {}",
                        static_cast<double>(size_) * mib, static_cast<double>(free) * mib, std::strerror(reason)),
            true);
  };
  if (size_ > free) no_room(ENOSPC);
  const auto size = static_cast<off_t>(size_);
  int result = size == 0 ? 0 : ::fallocate(file_, 0, 0, size);
  if (result != 0 && errno == EOPNOTSUPP) result = ::ftruncate(file_, size);
  if (result != 0) no_room(errno);
}

// There are twice as many slots as may be under way: one half is prepared or checked while the disk has the other.
// Their buffers are for memory that is not aligned, and for tails.
void BlockFile::choose_engine() {
  const auto depth = static_cast<std::size_t>(options_.queue_depth);
  buffers_ = {nullptr, 2 * depth, chunk_bytes};
  memory_ = make_chunk_memory(buffers_);
  engine_ = make_chunk_engine(options_.path, file_, buffers_, options_.queue_depth, options_.ring,
                              [this](const std::string& message) { warn(message); });
  if (options_.wrap) engine_ = options_.wrap(std::move(engine_));
  run_ = std::make_unique<Run>(*this, buffers_.slots);
}

void BlockFile::serve(Queue& queue) {
  SESTINA_REQUIRE(run_ != nullptr, "{} is not open", options_.path);
  run_->serve(queue);
}

// Takes a block out of the page cache. Reads compare digests, so no error matters.
void BlockFile::forget(const Transfer& transfer) const {
  const Block& block = blocks_[transfer.block];
  if (block.bytes > 0) forget_pages(file_, block.offset, padded_to_blocks(block.bytes), transfer.writes);
}

std::string BlockFile::describe() const {
  return fmt::format("{}: {:.1f} MiB in {} blocks, {} ({}), queue depth {}", options_.path,
                     static_cast<double>(size_) * mib, blocks_.size(), engine_ ? engine_->name() : "not open",
                     direct_ ? "O_DIRECT" : "page cache", options_.queue_depth);
}

void BlockFile::warn(const std::string& message) const { spdlog::warn("{}", message); }

}  // namespace sestina
