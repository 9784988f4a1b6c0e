#include "io/store/append_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "io/store/retry.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
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

}  // namespace sestina
