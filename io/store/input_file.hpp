// Files that are read: a regular one, one mapped into memory, bytes by position, and all files below a folder. No
// Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sestina {

// A regular file, open for reading for as long as the object lives.
class InputFile {
 public:
  // Opens the file. Error(input_missing) when it is not there, cannot be opened, or is no regular file: a pipe is never
  // waited for.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int get() const { return file_; }  // the descriptor
  std::uint64_t size() const { return identity_.size; }

  // The identity of the file in the file system; size: when it was opened.
  struct Identity {
    std::uint64_t device = 0, number = 0, size = 0;
    bool same_file(const Identity& other) const { return device == other.device && number == other.number; }
  };
  const Identity& identity() const { return identity_; }

 private:
  int file_ = -1;
  Identity identity_;
};

// A file mapped read-only into memory for as long as the object lives.
class MappedFile {
 public:
  MappedFile() = default;
  // Maps the file. Error(input_missing) when it is not there or cannot be opened; an empty file gives an empty view.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::string_view view() const { return {data_, size_}; }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(data_); }
  std::size_t size() const { return size_; }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

// Bytes of a file or of memory that are read by position. A file that has become shorter since it was opened is an
// error at the next read; a mapping of it would end the process with a signal.
class StoredBytes {
 public:
  virtual ~StoredBytes() = default;
  virtual std::uint64_t size() const = 0;
  // Reads bytes; thread-safe; begin + count is at most size().
  virtual void read(std::uint64_t begin, std::size_t count, void* out) const = 0;
  std::string text(std::uint64_t begin, std::size_t count) const;
};

// Bytes in memory that another object owns.
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

// Keeps files open, but only so many that thousands of parts need no more descriptors than a process may have: the one
// that was read longest ago is closed for another. Thread-safe.
class OpenFiles {
 public:
  OpenFiles();
  explicit OpenFiles(std::size_t most) : most_(most) {}
  std::shared_ptr<const InputFile> open(const std::string& path);

 private:
  std::size_t most_;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const InputFile>>> recent_;  // the file that was read last is first
};

class FileBytes final : public StoredBytes {
 public:
  // Throws Error(input_missing) as InputFile does. Several files of one source share `files`.
  explicit FileBytes(std::string path, std::shared_ptr<OpenFiles> files = std::make_shared<OpenFiles>());
  std::uint64_t size() const override { return first_.size; }
  // Throws Error(input_missing) when the file is shorter now, or another one has taken its name; Error(io_error).
  void read(std::uint64_t begin, std::size_t count, void* out) const override;

 private:
  std::string path_;
  std::shared_ptr<OpenFiles> files_;
  InputFile::Identity first_;
};

// Reads all of a file. Errors as FileBytes.
std::string read_whole_file(const std::string& path);

// The files below a folder. Links are followed, and each file counts once, whatever leads to it.
enum class Depth { this_folder, all_below };

// Returns regular files whose name is `wanted`, sorted by path. Folders and files after links belong to it; what was
// found without a link keeps that path, else it has the first of those that lead to it. Error(input_missing) for a
// folder that cannot be listed, and for a link that leads to nothing: such a path is never left out in silence.
std::vector<std::string> list_folder(const std::string& folder, Depth,
                                     const std::function<bool(const std::string& name)>& wanted);

// Returns the paths without those that lead to the file of an earlier one; a path that leads to no file stays.
std::vector<std::string> each_once(const std::vector<std::string>& paths);

}  // namespace sestina
