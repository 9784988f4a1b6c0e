// The run directory: made when absent, locked against a second job for as long as this object lives. No Kokkos.
#pragma once
#include <string>

namespace sestina {

class RunDir {
 public:
  // Makes and locks the directory; Error(cannot_create) when it cannot be made or written, or when another process
  // holds it: the message then says which process, host and job. The lock is the kernel's on <path>/lock and on the
  // folder, and ends with the process, however it ends.
  explicit RunDir(const std::string& path);
  ~RunDir();
  RunDir(const RunDir&) = delete;
  RunDir& operator=(const RunDir&) = delete;

  // Throws Error(io_error) when <path>/lock is no longer the file that this object locked: it, or the folder, was
  // removed, renamed or replaced.
  void require_held() const;
  const std::string& path() const { return path_; }
  void write_deck(const std::string& toml) const;  // writes deck.resolved.toml, whole or not at all

 private:
  std::string path_;
  void close_all();
  int lock_ = -1, folder_ = -1;
};

// Returns whether a run is going on in the directory, by its lock; false where there is no lock, or the file system has
// none.
bool run_dir_in_use(const std::string& path);

}  // namespace sestina
