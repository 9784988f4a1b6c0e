// A folder for the files of one input, in memory where the system has such a place; it goes with the object.
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace sestina::fuzz {

class Scratch {
 public:
  Scratch() {
    std::error_code none;
    const std::filesystem::path memory = "/dev/shm";
    std::string name =
        (is_directory(memory, none) ? memory : std::filesystem::temp_directory_path()) / "sestina-fuzz-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string path() const { return path_.string(); }
  std::string operator/(std::string_view name) const { return (path_ / name).string(); }
  std::string write(std::string_view name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return *this / name;
  }

 private:
  std::filesystem::path path_;
};

// The next `count` bytes of an input, fewer where it ends.
inline std::string_view take(std::string_view& input, std::size_t count) {
  const std::string_view head = input.substr(0, count);
  input.remove_prefix(head.size());
  return head;
}
// The next `bytes` bytes as a number, lowest byte first.
inline std::size_t take_number(std::string_view& input, std::size_t bytes) {
  std::size_t value = 0, shift = 0;
  for (const char c : take(input, bytes)) {
    value |= static_cast<std::size_t>(static_cast<unsigned char>(c)) << shift;
    shift += 8;
  }
  return value;
}

}  // namespace sestina::fuzz
