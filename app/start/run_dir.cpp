#include "app/start/run_dir.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "io/store/output_file.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/host_name.hpp"

namespace sestina {
namespace {

// Returns the line by which the holder names itself, for the error message of a second process.
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

// Locks an open file or folder exclusively; returns 0, or errno of the failure.
int lock_of(int file) { return flock(file, LOCK_EX | LOCK_NB) == 0 ? 0 : errno; }

int open_lock(const std::string& path) {
  return retried(path, [&] { return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); });
}

}  // namespace

RunDir::RunDir(const std::string& path) : path_(path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored))
    fail(ExitCode::cannot_create, "run directory {}: cannot be created: {}", path,
         error ? error.message() : "a file with this name exists");
  lock_ = open_lock(path + "/lock");
  if (lock_ < 0) fail_errno(path, "cannot be written");
  // The folder is locked too: a run whose lock file was removed still keeps others out. Some file systems lock no
  // folder.
  folder_ = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int reason = lock_of(lock_);
  if (reason == 0 && folder_ >= 0 && lock_of(folder_) == EWOULDBLOCK) reason = EWOULDBLOCK;
  if (reason != 0) {
    const bool no_locks_here =
        reason == ENOSYS || reason == EOPNOTSUPP || reason == ENOLCK;  // some shared file systems
    if (no_locks_here)
      spdlog::warn("{}: this file system has no locks; make sure that no second run uses the directory", path);
    const std::string holder = read_all(lock_);
    if (!no_locks_here) close_all();
    errno = reason;
    if (!no_locks_here && reason != EWOULDBLOCK) fail_errno(path, "cannot be locked");
    if (!no_locks_here)
      fail(ExitCode::cannot_create,
           "run directory {}: another run is using it: {}; wait for it, or choose another directory with -d", path,
           holder.empty() ? "an unnamed process" : holder);
  }
  const std::string line = holder_line();
  if (ftruncate(lock_, 0) != 0 || !write_all(path, lock_, line.data(), line.size())) {
    reason = errno;
    close_all();
    errno = reason;
    fail_errno(path, "cannot be written");
  }
}

RunDir::~RunDir() {
  [[maybe_unused]] const int ignored =
      ftruncate(lock_, 0);  // the file stays: removing it would let two processes lock two files
  close_all();
}

void RunDir::close_all() {
  close(lock_);
  if (folder_ >= 0) close(folder_);
}

void RunDir::require_held() const {
  const std::string what = moved_away(path_ + "/lock", lock_);
  if (!what.empty())
    fail(ExitCode::io_error, "{}/lock: {} during the run: nothing more is written there, since another run may use it",
         path_, what);
}

void RunDir::write_deck(const std::string& toml) const {
  const std::string target = path_ + "/deck.resolved.toml", temporary = target + ".tmp";
  const int file =
      retried(temporary, [&] { return open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644); });
  if (file < 0) fail_errno(path_, "deck.resolved.toml cannot be written");
  const bool written = write_all(temporary, file, toml.data(), toml.size()) && fsync(file) == 0;
  if (close(file) != 0 || !written || std::rename(temporary.c_str(), target.c_str()) != 0)
    fail_errno(path_, "deck.resolved.toml cannot be written");
}

bool run_dir_in_use(const std::string& path) {
  const int lock = open((path + "/lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (lock < 0) return false;
  const bool taken = flock(lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(lock);
  return taken;
}

}  // namespace sestina
