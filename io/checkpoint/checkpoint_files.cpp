#include "io/checkpoint/checkpoint_files.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "io/store/output_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_errno(const std::string& path, const char* what) {
  const int error = errno;
  fail(ExitCode::io_error, "{}: {}: {}", path, what, std::strerror(error));
}

// A file that is closed on every way out; close_checked is for where the result matters.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : path_(path), fd_(retried(path, [&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); })) {
    if (fd_ < 0) fail_errno(path, "cannot be opened");
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void close_checked() {
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) fail_errno(path_, "closing");
  }
  void write_at(const void* data, std::uint64_t bytes, std::uint64_t offset) const {
    if (!write_all(path_, fd_, data, bytes, static_cast<std::int64_t>(offset))) fail_errno(path_, "writing");
  }
  void sync() const {  // not again after a full disk: the system may have dropped the pages
    int result = ::fsync(fd_);
    while (result != 0 && errno == EINTR) result = ::fsync(fd_);
    if (result != 0) fail_errno(path_, "fsync");
  }

 private:
  std::string path_;
  int fd_;
};

// A process that has ended but has not been waited for still has its number: it is dead.
bool is_zombie(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(") ");
  return name_end != std::string::npos && text[name_end + 2] == 'Z';
}

bool is_alive(pid_t pid) { return pid != ::getpid() && (::kill(pid, 0) == 0 || errno == EPERM) && !is_zombie(pid); }

// Returns the process that a name "...tmp-<pid>" belongs to; 0 if it is no such name.
pid_t owner_of(const std::string& name) {
  const std::size_t at = name.rfind(".tmp-");
  pid_t pid = 0;
  if (at == std::string::npos) return 0;
  const char* begin = name.data() + at + 5;
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), pid);
  return error == std::errc() && end == name.data() + name.size() && pid > 0 ? pid : 0;
}

}  // namespace

void sync_path(const std::string& path) { Descriptor(path, O_RDONLY).sync(); }

void write_durably(const std::string& path, const std::string& text) {
  Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  file.write_at(text.data(), text.size(), 0);
  file.sync();
  file.close_checked();
}

void write_parts(const std::string& path, const std::vector<FilePart>& parts) {
  Descriptor file(path, O_WRONLY);
  for (const FilePart& part : parts) file.write_at(part.data, part.bytes, part.offset);
  file.close_checked();
}

void reserve_room(const std::string& path, std::uint64_t bytes) {
  if (bytes == 0) return;
  const Descriptor file(path, O_WRONLY | O_CREAT);
  if (!reserve_all(path, file.get(), bytes)) fail_errno(path, "no room");
}

std::string step_folder(std::int64_t step) { return fmt::format("step_{:08}", step); }

std::int64_t step_of_folder(const std::string& name) {
  std::int64_t step = -1;
  if (!name.starts_with("step_") || name.size() < 6) return -1;
  const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() ? step : -1;
}

void publish_folder(const std::string& temporary, const std::string& final_path) {
  sync_path(temporary);
  std::string old;
  const auto moved = [&](const std::string& from, const std::string& to) {
    return retried(to, [&] { return ::rename(from.c_str(), to.c_str()); }) == 0;
  };
  if (!moved(temporary, final_path)) {
    if (errno != ENOTEMPTY && errno != EEXIST) fail_errno(final_path, "rename");
    old = temporary;  // after the exchange the old one has the temporary name
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) != 0) {
      old = temporary + ".old.tmp-" + std::to_string(::getpid());
      if (!moved(final_path, old) || !moved(temporary, final_path)) fail_errno(final_path, "rename");
    }
  }
  sync_path(fs::path(final_path).parent_path());
  if (!old.empty()) delete_checkpoint(old);
}

void point_latest(const std::string& folder, const std::string& name) {
  const std::string link = folder + "/latest", fresh = link + ".tmp-" + std::to_string(::getpid());
  ::unlink(fresh.c_str());
  if (retried(fresh, [&] { return ::symlink(name.c_str(), fresh.c_str()); }) != 0) fail_errno(fresh, "symlink");
  if (retried(link, [&] { return ::rename(fresh.c_str(), link.c_str()); }) != 0) fail_errno(link, "rename");
  sync_path(folder);
}

void delete_checkpoint(const std::string& path) {
  std::error_code error;
  const std::string dying = path + ".tmp-" + std::to_string(::getpid());
  fs::remove_all(dying, error);  // what an earlier call could not delete
  fs::rename(path, dying, error);
  if (error == std::errc::no_such_file_or_directory) return;
  if (!error) fs::remove_all(dying, error);
  if (error) fail(ExitCode::io_error, "{}: cannot be deleted: {}", path, error.message());
}

bool is_leftover(const std::string& name) {
  const pid_t pid = owner_of(name);
  return pid != 0 && !is_alive(pid);
}

void remove_leftovers(const std::string& folder, const std::string& prefix) {
  std::error_code error;
  std::vector<fs::path> dead;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && is_leftover(name)) dead.push_back(entry.path());
  }
  for (const fs::path& path : dead) fs::remove_all(path, error);
}

}  // namespace sestina
