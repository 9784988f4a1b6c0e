#include "io/store/stored_bytes.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/store/retry.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

void copy_part(std::string_view bytes, std::uint64_t begin, std::size_t count, void* out) {
  SESTINA_REQUIRE(begin <= bytes.size() && count <= bytes.size() - begin, "bytes {} to {} of {}", begin, begin + count,
                  bytes.size());
  if (count > 0) std::memcpy(out, bytes.data() + begin, count);
}

// A share of what a process may have open, because a run reads several sources and needs files for other things too.
std::size_t files_at_once() {
  constexpr std::size_t most = 128;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return most;
  return std::clamp<std::size_t>(limit.rlim_cur / 8, 1, most);
}

}  // namespace

std::string StoredBytes::text(std::uint64_t begin, std::size_t count) const {
  std::string text(count, '\0');
  read(begin, count, text.data());
  return text;
}

void ViewedBytes::read(std::uint64_t begin, std::size_t count, void* out) const {
  copy_part(bytes_, begin, count, out);
}
void OwnedBytes::read(std::uint64_t begin, std::size_t count, void* out) const { copy_part(bytes_, begin, count, out); }

OpenFiles::OpenFiles() : most_(files_at_once()) {}

std::shared_ptr<const InputFile> OpenFiles::open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(recent_.begin(), recent_.end(), [&](const auto& entry) { return entry.first == path; });
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
  } else {
    recent_.emplace_front(path, std::make_shared<const InputFile>(path));
    if (recent_.size() > most_) recent_.pop_back();
  }
  return recent_.front().second;
}

FileBytes::FileBytes(std::string path, std::shared_ptr<OpenFiles> files)
    : path_(std::move(path)), files_(std::move(files)), first_(files_->open(path_)->identity()) {}

void FileBytes::read(std::uint64_t begin, std::size_t count, void* out) const {
  constexpr std::size_t most = std::size_t{1} << 30;  // one call moves less than 2 GiB
  SESTINA_REQUIRE(begin <= size() && count <= size() - begin, "{}: bytes {} to {} of {}", path_, begin, begin + count,
                  size());
  const auto file = files_->open(path_);  // stays open while it is read here, whatever other threads open
  if (!file->identity().same_file(first_))
    fail(ExitCode::input_missing, "{}: is another file than the one that was opened: it was replaced meanwhile", path_);
  Retry retry(path_);
  for (char* to = static_cast<char*>(out); count > 0;) {
    const ssize_t got = ::pread(file->get(), to, std::min(count, most), static_cast<off_t>(begin));
    if (got < 0 && retry.again(errno)) continue;
    if (got < 0) fail(ExitCode::io_error, "{}: cannot be read at byte {}: {}", path_, begin, std::strerror(errno));
    if (got == 0)
      fail(ExitCode::input_missing,
           "{}: ends at or before byte {}, it had {} bytes when it was opened: it was cut meanwhile", path_, begin,
           size());
    to += got;
    begin += static_cast<std::uint64_t>(got);
    count -= static_cast<std::size_t>(got);
  }
}

std::string read_whole_file(const std::string& path) {
  const FileBytes file(path);
  return file.text(0, static_cast<std::size_t>(file.size()));
}

}  // namespace sestina
