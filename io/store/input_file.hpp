// A regular file, open for reading for as long as the object lives. No Kokkos.
#pragma once
#include <cstdint>
#include <string>

namespace sestina {

class InputFile {
 public:
  // Error(input_missing) when it is not there, cannot be opened, or is no regular file: a pipe is never waited for.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int get() const { return file_; }  // descriptor
  std::uint64_t size() const { return identity_.size; }

  // Which file it is, as the file system knows it; size: when it was opened.
  struct Identity {
    std::uint64_t device = 0, number = 0, size = 0;
    bool same_file(const Identity& other) const { return device == other.device && number == other.number; }
  };
  const Identity& identity() const { return identity_; }

 private:
  int file_ = -1;
  Identity identity_;
};

}  // namespace sestina
