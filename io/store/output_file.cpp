#include "io/store/output_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "io/store/retry.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
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

}  // namespace sestina
