#include "io/store/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "kernels/base/error.hpp"

namespace sestina {

bool may_pass(int error) {
  for (const int passing : {EINTR, EAGAIN, ENOSPC, EDQUOT, ESTALE, ETIMEDOUT})
    if (error == passing) return true;
  return false;
}

double retry_seconds() {
  constexpr double most = 60;  // then the run ends with io_error, or does without what was to be written
  const char* text = std::getenv("SESTINA_RETRY_SECONDS");
  if (text == nullptr) return most;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  return end != text && seconds >= 0 ? std::min(seconds, most) : most;
}

bool Retry::again(int error) {
  using namespace std::chrono;
  constexpr auto pause = milliseconds(20);
  if (!may_pass(error)) {
    errno = error;
    return false;
  }
  const double bound = std::min(most_, retry_seconds());
  if (!started_) end_ = steady_clock::now() + duration_cast<steady_clock::duration>(duration<double>(bound));
  started_ = true;
  const bool time_left = steady_clock::now() < end_;
  if (time_left && error != EINTR) {
    if (!said_) spdlog::warn("{}: {}; retrying for at most {} s", what_, std::strerror(error), bound);
    said_ = true;
    std::this_thread::sleep_for(std::min<steady_clock::duration>(pause, end_ - steady_clock::now()));
  }
  errno = error;
  return time_left;
}

bool write_all(Retry& retry, int file, const void* data, std::size_t& bytes, std::int64_t offset) {
  constexpr std::size_t most = std::size_t{1} << 30;  // one call moves less than 2 GiB
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const std::size_t count = std::min(bytes, most);
    const ssize_t done = offset < 0 ? ::write(file, from, count) : ::pwrite(file, from, count, offset);
    if (done < 0 && retry.again(errno)) continue;
    if (done < 0) return false;
    if (done == 0 && !retry.again(EAGAIN)) return false;
    from += done;
    bytes -= static_cast<std::size_t>(done);
    if (offset >= 0) offset += done;
  }
  return true;
}

bool write_all(const std::string& what, int file, const void* data, std::size_t bytes, std::int64_t offset) {
  Retry retry(what);
  return write_all(retry, file, data, bytes, offset);
}

bool reserve_all(const std::string& what, int file, std::uint64_t bytes) {
  if (bytes == 0) return true;
  if (retried(what, [&] { return ::fallocate(file, 0, 0, static_cast<off_t>(bytes)); }) == 0) return true;
  return errno != ENOSPC && errno != EDQUOT && errno != EFBIG && errno != EIO;
}

namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

void write_or_fail(int file, const char* data, std::size_t bytes, const std::string& path) {
  if (!write_all(path, file, data, bytes))
    fail(ExitCode::io_error, "{}: cannot be written: {}", path, std::strerror(errno));
}

}  // namespace

OutputFile::OutputFile(const std::string& path)
    : path_(path), temporary_(fmt::format("{}.tmp-{}", path, static_cast<long>(::getpid()))) {
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) fail(ExitCode::cannot_create, "{}: cannot be created: {}", folder.string(), error.message());
  file_ = retried(path, [&] { return ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644); });
  if (file_ < 0) fail(ExitCode::cannot_create, "{}: cannot be created: {}", path, std::strerror(errno));
  buffer_.reserve(buffer_bytes);
}

OutputFile::~OutputFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void OutputFile::write(const void* data, std::size_t bytes) {
  const char* source = static_cast<const char*>(data);
  written_ += bytes;
  if (buffer_.size() + bytes > buffer_bytes) flush();
  if (bytes >= buffer_bytes) {
    write_or_fail(file_, source, bytes, temporary_);
  } else {
    buffer_.insert(buffer_.end(), source, source + bytes);
  }
}

void OutputFile::flush() {
  write_or_fail(file_, buffer_.data(), buffer_.size(), temporary_);
  buffer_.clear();
}

void OutputFile::commit() {
  flush();
  if (::fsync(file_) != 0) fail(ExitCode::io_error, "{}: cannot be synced: {}", temporary_, std::strerror(errno));
  if (retried(path_, [&] { return ::rename(temporary_.c_str(), path_.c_str()); }) != 0)
    fail(ExitCode::cannot_create, "{}: cannot be renamed to: {}", path_, std::strerror(errno));
  ::close(file_);
  file_ = -1;
  const auto folder = std::filesystem::path(path_).parent_path();
  const int parent = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) return;  // the rename is done; some file systems refuse to open folders
  ::fsync(parent);
  ::close(parent);
}

void write_output_file(const std::string& path, std::string_view content) {
  OutputFile file(path);
  file.write(content);
  file.commit();
}

namespace {

// A process that was killed in mid-line leaves no line feed at the end.
bool ends_in_mid_line(int file) {
  const off_t size = ::lseek(file, 0, SEEK_END);
  char last = '\n';
  return size > 0 && ::pread(file, &last, 1, size - 1) == 1 && last != '\n';
}

}  // namespace

AppendFile::AppendFile(const std::string& path) : path_(path) {
  file_ = retried(path, [&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644); });
  if (file_ < 0) fail(ExitCode::cannot_create, "{}: cannot be opened for appending: {}", path, std::strerror(errno));
  mid_line_ = ends_in_mid_line(file_);
}

AppendFile::~AppendFile() { ::close(file_); }

bool AppendFile::write(std::string_view text, bool logs) {
  constexpr double wait = 5;  // seconds
  Retry retry(path_, given_up_ ? 0 : wait);
  if (!logs) retry.say_nothing();
  std::size_t line_feed = mid_line_ ? 1 : 0, left = text.size();
  const bool written = write_all(retry, file_, "\n", line_feed) && write_all(retry, file_, text.data(), left);
  mid_line_ = written ? !text.ends_with('\n') : line_feed > 0 || left < text.size();
  given_up_ = !written;
  return written;
}

std::string AppendFile::problem() const {
  const std::string what = moved_away(path_, file_);
  return what.empty() ? "" : fmt::format("{}: {} while the run was writing to it", path_, what);
}

std::string moved_away(const std::string& path, int file) {
  struct stat there {
  }, mine{};
  if (::fstat(file, &mine) != 0) return std::strerror(errno);
  if (::stat(path.c_str(), &there) != 0)
    return errno == ENOENT || errno == ENOTDIR ? "removed or renamed" : std::strerror(errno);
  return there.st_ino == mine.st_ino && there.st_dev == mine.st_dev ? "" : "replaced by another file";
}

void write_npy(const std::string& path, const float* values, std::size_t rows, std::size_t cols) {
  constexpr std::size_t alignment = 64, preamble = 10;  // magic, version, length of the header
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
  header.append(alignment - (preamble + header.size() + 1) % alignment, ' ');
  header.push_back('\n');
  OutputFile file(path);
  file.write(std::string_view("\x93NUMPY\x01\x00", 8));
  const unsigned char length[] = {static_cast<unsigned char>(header.size() & 0xff),
                                  static_cast<unsigned char>(header.size() >> 8)};
  file.write(length, sizeof length);
  file.write(header);
  file.write(values, rows * cols * sizeof(float));
  file.commit();
}

}  // namespace sestina
