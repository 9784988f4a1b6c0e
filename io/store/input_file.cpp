#include "io/store/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/error.hpp"

namespace sestina {

InputFile::InputFile(const std::string& path) {
  // Without O_NONBLOCK to open a pipe would wait for its writer; regular files do not know it.
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) fail(ExitCode::input_missing, "{}: cannot be opened: {}", path, std::strerror(errno));
  struct stat status {};
  if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file_);
    fail(ExitCode::input_missing, "{}: is not a regular file", path);
  }
  identity_ = {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size)};
}

InputFile::~InputFile() { ::close(file_); }

}  // namespace sestina
