#include "io/store/input_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "io/store/output_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

InputFile::InputFile(const std::string& path) {
  // Without O_NONBLOCK opening a pipe would wait for its writer; for regular files the flag has no effect.
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

MappedFile::MappedFile(const std::string& path) {
  const InputFile file(path);
  size_ = static_cast<std::size_t>(file.size());
  void* address = size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) fail(ExitCode::io_error, "{}: cannot be mapped: {}", path, std::strerror(errno));
  data_ = static_cast<const char*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

namespace {

void copy_part(std::string_view bytes, std::uint64_t begin, std::size_t count, void* out) {
  SESTINA_REQUIRE(begin <= bytes.size() && count <= bytes.size() - begin, "bytes {} to {} of {}", begin, begin + count,
                  bytes.size());
  if (count > 0) std::memcpy(out, bytes.data() + begin, count);
}

// Returns a share of the files that a process may have open, because a run reads several sources and needs other files
// too.
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

namespace {

namespace fs = std::filesystem;
using FileNumber = std::pair<std::uint64_t, std::uint64_t>;  // device and inode

FileNumber number_of(const struct stat& status) { return {status.st_dev, status.st_ino}; }

class FolderWalk {
 public:
  FolderWalk(Depth depth, const std::function<bool(const std::string&)>& wanted) : depth_(depth), wanted_(wanted) {}

  // Lists all that lies below without a link, then what the links lead to, which may be folders with links again.
  std::vector<std::string> list(const std::string& folder) {
    enter(folder);
    while (!links_.empty()) {
      std::vector<std::string> links;
      links.swap(links_);
      std::sort(links.begin(), links.end());
      for (const std::string& link : links) take(link, false);
    }
    std::sort(files_.begin(), files_.end());
    return std::move(files_);
  }

 private:
  void enter(const std::string& folder) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) refuse(folder, errno);
    if (!folders_.insert(number_of(status)).second) return;
    std::error_code error;
    std::vector<std::string> names;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
      names.push_back(entry->path().string());
    if (error) refuse(folder, error.value());
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) take(name, true);
  }

  void take(const std::string& path, bool later) {
    struct stat status {};
    if (later && ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) return links_.push_back(path);
    const std::string name = fs::path(path).filename().string();
    if (name.starts_with(".#")) return;  // an editor's lock, which is a link to nothing by intent
    if (::stat(path.c_str(), &status) != 0) {
      const int error = errno;
      if (wanted_(name) || depth_ == Depth::all_below) refuse(path, error);
      return;
    }
    if (S_ISDIR(status.st_mode) && depth_ == Depth::all_below) enter(path);
    if (S_ISREG(status.st_mode) && wanted_(name) && seen_.insert(number_of(status)).second) files_.push_back(path);
  }

  [[noreturn]] static void refuse(const std::string& path, int error) {
    fail(ExitCode::input_missing, "{}: cannot be read: {}", path, std::strerror(error));
  }

  Depth depth_;
  const std::function<bool(const std::string&)>& wanted_;
  std::set<FileNumber> folders_, seen_;
  std::vector<std::string> files_, links_;
};

}  // namespace

std::vector<std::string> list_folder(const std::string& folder, Depth depth,
                                     const std::function<bool(const std::string&)>& wanted) {
  return FolderWalk(depth, wanted).list(folder);
}

std::vector<std::string> each_once(const std::vector<std::string>& paths) {
  std::set<FileNumber> seen;
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || seen.insert(number_of(status)).second) files.push_back(path);
  }
  return files;
}

}  // namespace sestina
