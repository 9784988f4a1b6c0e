// Files that are written: whole or not at all, line by line, as a NumPy array; and errors of the file system that may
// pass. No Kokkos.
#pragma once
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace sestina {

// Errors of the file system that may pass by themselves: the call is made again, for a limited time. All that write
// (metrics, log, checkpoints, exports) do so in this way.

// True for EINTR, EAGAIN, ENOSPC, EDQUOT, ESTALE, ETIMEDOUT.
bool may_pass(int error);

// Returns the seconds for which one call is made again: SESTINA_RETRY_SECONDS of the environment (>= 0), 60 without it.
double retry_seconds();

class Retry {
 public:
  // what: the name in the one line of the log, usually a path; must outlive this. most: a bound below retry_seconds().
  explicit Retry(const std::string& what, double most = 1e9) : what_(what), most_(most) {}
  // Called after a call that failed with `error`: waits and returns true when the call is to be made again. errno is
  // `error` afterwards.
  bool again(int error);
  void went_well() { started_ = false; }  // time starts over at the next error, which is not logged again
  void say_nothing() { said_ = true; }    // for errors of the log itself

 private:
  const std::string& what_;
  double most_;
  bool said_ = false, started_ = false;
  std::chrono::steady_clock::time_point end_;
};

// Returns the result of a system call, -1 with errno once it has failed for good.
template <class Call>
auto retried(const std::string& what, const Call& call) {
  Retry retry(what);
  auto result = call();
  while (result < 0 && retry.again(errno)) result = call();
  return result;
}

// Does the same for calls of std::filesystem, which give an error code.
template <class Call>
std::error_code retried_code(const std::string& what, const Call& call) {
  Retry retry(what);
  std::error_code error = call();
  while (error && retry.again(error.value())) error = call();
  return error;
}

// Writes all of the data, at `offset` or, below 0, at the file's position. Returns false with errno, and what is left
// in `bytes`.
bool write_all(Retry&, int file, const void* data, std::size_t& bytes, std::int64_t offset = -1);
// Does the same with a Retry of its own.
bool write_all(const std::string& what, int file, const void* data, std::size_t bytes, std::int64_t offset = -1);

// Makes a file at least so long and asks the file system for room for all of it, so that a full disk is found before
// anything is written. Returns false with errno when the disk has none; returns true and does nothing where it cannot
// be asked.
bool reserve_all(const std::string& what, int file, std::uint64_t bytes);

// A file that appears whole or not at all: written under a temporary name next to its own, synced, then renamed.
class OutputFile {
 public:
  // Creates the temporary file (and its folder); Error(cannot_create) when that fails.
  explicit OutputFile(const std::string& path);
  ~OutputFile();  // removes the temporary file unless commit() was called
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, std::size_t bytes);  // Error(io_error) on a full disk and the like
  void write(std::string_view text) { write(text.data(), text.size()); }
  std::size_t written() const { return written_; }
  void commit();  // fsync, rename, fsync of the folder

 private:
  void flush();
  std::string path_, temporary_;
  int file_ = -1;
  std::size_t written_ = 0;
  std::vector<char> buffer_;
};

// Writes and commits such a file.
void write_output_file(const std::string& path, std::string_view content);

// A file that a run appends lines to, and that may not be moved away under it: metrics.jsonl, log.txt.
class AppendFile {
 public:
  explicit AppendFile(const std::string& path);  // Error(cannot_create)
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Appends the text, on a line of its own where the file ends in the middle of one. Returns false with errno when the
  // disk refuses it: errors that may pass are tried again, but only for a few seconds, since the run waits meanwhile,
  // and not at all after a line that was given up. logs: the retries are said in the log.
  bool write(std::string_view text, bool logs = true);

  // Returns "" when the path still leads to this file, else what has become of it.
  std::string problem() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_;
  bool mid_line_ = false, given_up_ = false;
};

// Returns "" when `path` leads to the open file, else "removed", "replaced by another file" or why it cannot be said.
std::string moved_away(const std::string& path, int file);

// A matrix can be written as a NumPy file (format version 1.0).

// Writes values (rows, cols), row-major float32. Error(cannot_create) or Error(io_error).
void write_npy(const std::string& path, const float* values, std::size_t rows, std::size_t cols);

}  // namespace sestina
