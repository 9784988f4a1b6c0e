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

// Called again and again by what reads much; throws to end it. Not an Error: that would be taken for the file's defect.
using Poll = std::function<void()>;

struct FileDigest {
  std::uint64_t size = 0;
  std::string xxh3_128;
};
// Reads the whole file. Error(input_missing) if it cannot be opened, Error(io_error) if it cannot be read.
FileDigest digest_file(const std::string& path, const Poll& poll = {});
// Of several files, by their sizes, order and bytes, whatever their names; size: of all. Of a file above 16 MiB only 64
// evenly spaced stretches of 64 KiB count, unless `whole`. Errors as digest_file.
FileDigest digest_files(const std::vector<std::string>& paths, const Poll& poll = {}, bool whole = false);
// hex64 of the digest64 of bytes [begin, begin + size) of a file; ends early at the end of the file. Errors as
// digest_file.
// Calls use(data, bytes) for the bytes of [begin, begin + size) that the file has, in order; all but the last 1 MiB
// long. Error(input_missing, io_error).
void read_chunks(const std::string& path, std::uint64_t begin, std::uint64_t size,
                 const std::function<void(const std::byte*, std::size_t)>& use);
std::string digest_range(const std::string& path, std::uint64_t begin, std::uint64_t size);

}  // namespace sestina
