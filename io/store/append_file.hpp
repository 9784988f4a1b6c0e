// A file that a run appends lines to, and that may not be moved away under it: metrics.jsonl, log.txt. No Kokkos.
#pragma once
#include <string>
#include <string_view>

namespace sestina {

class AppendFile {
 public:
  explicit AppendFile(const std::string& path);  // Error(cannot_create)
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Appends; on a line of its own where the file ends in the middle of one. False with errno when the disk refuses it:
  // errors that may pass are tried again (io/store/retry.hpp), but for a few seconds alone, since the run waits
  // meanwhile, and not at all after a line that was given up. logs: the retries are said in the log.
  bool write(std::string_view text, bool logs = true);

  // "" when the path still leads to this file, else what has become of it.
  std::string problem() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_;
  bool mid_line_ = false, given_up_ = false;
};

// Whether `path` leads to the open file; "" if so, else "removed", "replaced by another file" or why it cannot be said.
std::string moved_away(const std::string& path, int file);

}  // namespace sestina
