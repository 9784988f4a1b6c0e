// A file that appears whole or not at all: written under a temporary name next to its own, synced, then renamed.
// No Kokkos.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sestina {

class OutputFile {
 public:
  // Creates the temporary file (and its folder); Error(cannot_create) when that fails.
  explicit OutputFile(const std::string& path);
  ~OutputFile();  // without commit(): removes the temporary file
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

// One of these, written and committed.
void write_output_file(const std::string& path, std::string_view content);

}  // namespace sestina
