// Digests of bytes and files with XXH3 (https://github.com/Cyan4973/xxHash): the 128-bit ones are printed as `xxhsum
// -H2` prints them. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sestina {

std::uint64_t digest64(const void* data, std::size_t bytes);
std::string hex64(std::uint64_t value);                      // 16 lower-case digits
std::string digest128(const void* data, std::size_t bytes);  // 32 lower-case digits

// The 128-bit digest of a stream of pieces.
class Digest128 {
 public:
  Digest128();
  ~Digest128();
  void add(const void* data, std::size_t bytes);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The 64-bit digest of a stream of pieces.
class Digest64 {
 public:
  Digest64();
  ~Digest64();
  void add(const void* data, std::size_t bytes);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Functions that read much call it again and again; it throws to end them, but not an Error, which would be taken for a
// defect of the file.
using Poll = std::function<void()>;

struct FileDigest {
  std::uint64_t size = 0;
  std::string xxh3_128;
};
// Reads the whole file. Error(input_missing) if it cannot be opened, Error(io_error) if it cannot be read.
FileDigest digest_file(const std::string& path, const Poll& poll = {});
// Digests several files by their sizes, order and bytes, whatever their names; size is that of all. In a file above 16
// MiB only 64 evenly spaced stretches of 64 KiB count, unless `whole`. Errors as digest_file.
FileDigest digest_files(const std::vector<std::string>& paths, const Poll& poll = {}, bool whole = false);
// Calls use(data, bytes) for the bytes of [begin, begin + size) that the file has, in order; all but the last 1 MiB
// long. Error(input_missing, io_error).
void read_chunks(const std::string& path, std::uint64_t begin, std::uint64_t size,
                 const std::function<void(const std::byte*, std::size_t)>& use);
// Returns hex64 of the digest64 of bytes [begin, begin + size) of a file; ends early at the end of the file. Errors as
// digest_file.
std::string digest_range(const std::string& path, std::uint64_t begin, std::uint64_t size);

}  // namespace sestina
