#include "io/store/digest.hpp"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "io/store/input_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;  // a chunk stays in the second-level cache between read and hash

std::string hex128(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::string text;
  for (unsigned char byte : canonical.digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

void read_chunks(const std::string& path, std::uint64_t begin, std::uint64_t size,
                 const std::function<void(const std::byte*, std::size_t)>& use) {
  const InputFile input(path);
  const int file = input.get();
  std::vector<std::byte> chunk(static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, size)));
  std::size_t held = 0;  // a chunk may come in pieces
  for (std::uint64_t done = 0; done < size;) {
    const auto want = static_cast<std::size_t>(std::min<std::uint64_t>(chunk.size() - held, size - done));
    const ssize_t got = ::pread(file, chunk.data() + held, want, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      fail(ExitCode::io_error, "{}: cannot be read at byte {}: {}", path, begin + done, std::strerror(errno));
    if (got == 0) break;
    done += static_cast<std::uint64_t>(got);
    held += static_cast<std::size_t>(got);
    if (held < chunk.size()) continue;
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

FileDigest digest_file(const std::string& path, const Poll& poll) {
  Digest128 digest;
  FileDigest result;
  read_chunks(path, 0, std::numeric_limits<std::int64_t>::max(), [&](const std::byte* data, std::size_t bytes) {
    digest.add(data, bytes);
    result.size += bytes;
    if (poll) poll();
  });
  result.xxh3_128 = digest.hex();
  return result;
}

FileDigest digest_files(const std::vector<std::string>& paths, const Poll& poll, bool whole) {
  constexpr std::uint64_t small = std::uint64_t{16} << 20, stretches = 64, stretch = std::uint64_t{64} << 10;
  Digest128 digest;
  FileDigest result;
  for (const std::string& path : paths) {
    const std::uint64_t size = InputFile(path).size();
    result.size += size;
    digest.add(&size, sizeof size);
    const bool all = whole || size <= small;
    for (std::uint64_t i = 0; i < (all ? 1 : stretches); ++i)
      read_chunks(path, all ? 0 : i * (size - stretch) / (stretches - 1), all ? size : stretch,
                  [&](const std::byte* data, std::size_t bytes) {
                    digest.add(data, bytes);
                    if (poll) poll();
                  });
  }
  result.xxh3_128 = digest.hex();
  return result;
}

std::string digest_range(const std::string& path, std::uint64_t begin, std::uint64_t size) {
  Digest64 digest;
  read_chunks(path, begin, size, [&](const std::byte* data, std::size_t bytes) { digest.add(data, bytes); });
  return digest.hex();
}

}  // namespace sestina
