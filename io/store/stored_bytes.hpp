// Bytes that are read by position, of a file or of memory. A file that has become shorter since it was opened is an
// error at the next read; a mapping of it would end the process with a signal. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "io/store/input_file.hpp"

namespace sestina {

class StoredBytes {
 public:
  virtual ~StoredBytes() = default;
  virtual std::uint64_t size() const = 0;
  // Thread-safe; begin + count is at most size().
  virtual void read(std::uint64_t begin, std::size_t count, void* out) const = 0;
  std::string text(std::uint64_t begin, std::size_t count) const;
};

// Somebody else's memory.
class ViewedBytes final : public StoredBytes {
 public:
  explicit ViewedBytes(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t begin, std::size_t count, void* out) const override;

 private:
  std::string_view bytes_;
};

class OwnedBytes final : public StoredBytes {
 public:
  explicit OwnedBytes(std::string bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t begin, std::size_t count, void* out) const override;

 private:
  std::string bytes_;
};

// Files that lie open, so many at most that thousands of parts need no more descriptors than a process may have: the
// one that was read longest ago is closed for another. Thread-safe.
class OpenFiles {
 public:
  OpenFiles();
  explicit OpenFiles(std::size_t most) : most_(most) {}
  std::shared_ptr<const InputFile> open(const std::string& path);

 private:
  std::size_t most_;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const InputFile>>> recent_;  // the last one read stands first
};

class FileBytes final : public StoredBytes {
 public:
  // Error(input_missing) as InputFile. Several files of one source share `files`.
  explicit FileBytes(std::string path, std::shared_ptr<OpenFiles> files = std::make_shared<OpenFiles>());
  std::uint64_t size() const override { return first_.size; }
  // Error(input_missing) when the file is shorter now, or another one has taken its name; Error(io_error).
  void read(std::uint64_t begin, std::size_t count, void* out) const override;

 private:
  std::string path_;
  std::shared_ptr<OpenFiles> files_;
  InputFile::Identity first_;
};

// All of a file. Errors as FileBytes.
std::string read_whole_file(const std::string& path);

}  // namespace sestina
