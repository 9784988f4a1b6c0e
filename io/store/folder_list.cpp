#include "io/store/folder_list.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;
using FileNumber = std::pair<std::uint64_t, std::uint64_t>;  // device and inode

FileNumber number_of(const struct stat& status) { return {status.st_dev, status.st_ino}; }

class FolderWalk {
 public:
  FolderWalk(Depth depth, const std::function<bool(const std::string&)>& wanted) : depth_(depth), wanted_(wanted) {}

  // All that lies below without a link, then what the links lead to, which may be folders with links again.
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
