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
  std::uint64_t size() const { return size_; }

 private:
  int file_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace sestina
