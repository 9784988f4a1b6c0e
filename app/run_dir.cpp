#include "app/run_dir.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "kernels/error.hpp"

namespace sestina {
namespace {

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown host";
}

// What the holder says of itself, for the message of the one who comes too late.
std::string holder_line() {
  const char* job = std::getenv("SLURM_JOB_ID");
  return fmt::format("process {} on {}{}\n", getpid(), host_name(), job ? fmt::format(", job {}", job) : "");
}

std::string read_all(int file) {
  char text[512];
  const auto bytes = pread(file, text, sizeof text, 0);
  std::string line(text, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return line.substr(0, line.find('\n'));
}

[[noreturn]] void fail_errno(const std::string& path, const char* what) {
  fail(ExitCode::cannot_create, "run directory {}: {}: {}", path, what, std::strerror(errno));
}

bool write_all(int file, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const auto bytes = write(file, text.data() + done, text.size() - done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return false;
    done += static_cast<std::size_t>(bytes);
  }
  return true;
}

}  // namespace

RunDir::RunDir(const std::string& path) : path_(path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored))
    fail(ExitCode::cannot_create, "run directory {}: cannot be made: {}", path,
         error ? error.message() : "a file is in the way");
  const std::string lock_path = path + "/lock";
  lock_ = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) fail_errno(path, "cannot be written");
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    const bool no_locks_here =
        reason == ENOSYS || reason == EOPNOTSUPP || reason == ENOLCK;  // some shared file systems
    if (no_locks_here)
      spdlog::warn("{}: this file system has no locks; see to it that no second run uses the directory", path);
    const std::string holder = read_all(lock_);
    if (!no_locks_here) close(lock_);
    errno = reason;
    if (!no_locks_here && reason != EWOULDBLOCK) fail_errno(path, "cannot be locked");
    if (!no_locks_here)
      fail(ExitCode::cannot_create,
           "run directory {}: another run is using it: {}; wait for it, or choose another directory with -d", path,
           holder.empty() ? "an unnamed process" : holder);
  }
  if (ftruncate(lock_, 0) != 0 || !write_all(lock_, holder_line())) {
    const int reason = errno;
    close(lock_);
    errno = reason;
    fail_errno(path, "cannot be written");
  }
}

RunDir::~RunDir() {
  [[maybe_unused]] const int ignored =
      ftruncate(lock_, 0);  // the file stays: removing it would let two processes lock two files
  close(lock_);
}

void RunDir::write_deck(const std::string& toml) const {
  const std::string target = path_ + "/deck.resolved.toml", temporary = target + ".tmp";
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail_errno(path_, "deck.resolved.toml cannot be written");
  const bool written = write_all(file, toml) && fsync(file) == 0;
  if (close(file) != 0 || !written || std::rename(temporary.c_str(), target.c_str()) != 0)
    fail_errno(path_, "deck.resolved.toml cannot be written");
}

}  // namespace sestina
