// A file mapped read-only into memory for as long as the object lives. No Kokkos.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace sestina {

class MappedFile {
 public:
  MappedFile() = default;
  // Error(input_missing) when the file is not there or cannot be opened; an empty file gives an empty view.
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

}  // namespace sestina
