#include "io/digest.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/error.hpp"

namespace sestina {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;  // stays in the second-level cache between read and hash

std::string hex128(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::string text;
  for (unsigned char byte : canonical.digest) text += fmt::format("{:02x}", byte);
  return text;
}

struct Closing {
  int file;
  ~Closing() { ::close(file); }
};

}  // namespace

void read_chunks(const std::string& path, std::uint64_t begin, std::uint64_t size,
                 const std::function<void(const std::byte*, std::size_t)>& use) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(ExitCode::input_missing, "{}: cannot be opened: {}", path, std::strerror(errno));
  const Closing closing{file};
  std::vector<std::byte> chunk(kChunk);
  std::size_t held = 0;  // a chunk may come in pieces
  for (std::uint64_t done = 0; done < size;) {
    const auto want = static_cast<std::size_t>(std::min<std::uint64_t>(kChunk - held, size - done));
    const ssize_t got = ::pread(file, chunk.data() + held, want, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      fail(ExitCode::io_error, "{}: cannot be read at byte {}: {}", path, begin + done, std::strerror(errno));
    if (got == 0) break;
    done += static_cast<std::uint64_t>(got);
    held += static_cast<std::size_t>(got);
    if (held < kChunk) continue;
    use(chunk.data(), std::exchange(held, 0));
  }
  if (held > 0) use(chunk.data(), held);
}

std::uint64_t digest64(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }
std::string hex64(std::uint64_t value) { return fmt::format("{:016x}", value); }
std::string digest128(const void* data, std::size_t bytes) { return hex128(XXH3_128bits(data, bytes)); }

struct Digest128::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() { XXH3_128bits_reset(xxh); }
  ~State() { XXH3_freeState(xxh); }
};
Digest128::Digest128() : state_(std::make_unique<State>()) {}
Digest128::~Digest128() = default;
void Digest128::add(const void* data, std::size_t bytes) { XXH3_128bits_update(state_->xxh, data, bytes); }
std::string Digest128::hex() const { return hex128(XXH3_128bits_digest(state_->xxh)); }

struct Digest64::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() { XXH3_64bits_reset(xxh); }
  ~State() { XXH3_freeState(xxh); }
};
Digest64::Digest64() : state_(std::make_unique<State>()) {}
Digest64::~Digest64() = default;
void Digest64::add(const void* data, std::size_t bytes) { XXH3_64bits_update(state_->xxh, data, bytes); }
std::string Digest64::hex() const { return hex64(XXH3_64bits_digest(state_->xxh)); }

FileDigest digest_file(const std::string& path) {
  Digest128 digest;
  FileDigest result;
  read_chunks(path, 0, std::numeric_limits<std::int64_t>::max(), [&](const std::byte* data, std::size_t bytes) {
    digest.add(data, bytes);
    result.size += bytes;
  });
  result.xxh3_128 = digest.hex();
  return result;
}

std::string digest_range(const std::string& path, std::uint64_t begin, std::uint64_t size) {
  Digest64 digest;
  read_chunks(path, begin, size, [&](const std::byte* data, std::size_t bytes) { digest.add(data, bytes); });
  return digest.hex();
}

}  // namespace sestina
