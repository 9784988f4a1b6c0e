#include "io/tokens/text_unpack.hpp"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <memory>
#include <new>

#include "kernels/base/error.hpp"

namespace sestina {

namespace {

// After the last member or frame zeros may stand, which fill a block.
bool only_zeros(std::string_view rest) { return rest.find_first_not_of('\0') == rest.npos; }

// Windows of `zstd --long=31` take 2 GiB; by itself the library allows 128 MiB.
void allow_long_windows(ZSTD_DStream* stream) {
  constexpr int longest = sizeof(void*) == 8 ? 31 : 30;
  const std::size_t result = ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, longest);
  if (ZSTD_isError(result)) fail(ExitCode::internal, "libzstd: {}", ZSTD_getErrorName(result));
}

}  // namespace

// A gzip file may hold several members one after the other.
std::string unpack_gzip(std::string_view packed, const std::string& path) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) fail(ExitCode::internal, "zlib cannot be initialised");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  std::string text;
  for (;;) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream.avail_in = static_cast<uInt>(std::min<std::size_t>(packed.size(), std::size_t{1} << 28));
    const std::size_t offered = stream.avail_in, before = text.size(),
                      room = std::max<std::size_t>(1 << 16, 4 * offered);
    text.resize(before + room);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + before);
    stream.avail_out = static_cast<uInt>(room);
    const int status = inflate(&stream, Z_NO_FLUSH);
    text.resize(before + room - stream.avail_out);
    packed.remove_prefix(offered - stream.avail_in);
    if (status == Z_STREAM_END && only_zeros(packed)) return text;
    if (status == Z_STREAM_END) {
      inflateReset(&stream);
    } else if (status != Z_OK) {  // Z_BUF_ERROR: more input is needed and there is none
      fail(ExitCode::bad_data, "{}: is damaged or truncated gzip data", path);
    }
  }
}

std::string unpack_zstd(std::string_view packed, const std::string& path) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  if (!stream) fail(ExitCode::internal, "libzstd cannot be initialised");
  allow_long_windows(stream.get());
  std::string text;
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  for (std::size_t wanted = 1;;) {
    const std::size_t before = text.size(), room = ZSTD_DStreamOutSize();
    text.resize(before + room);
    ZSTD_outBuffer out{text.data() + before, room, 0};
    wanted = ZSTD_decompressStream(stream.get(), &out, &in);
    text.resize(before + out.pos);
    if (ZSTD_getErrorCode(wanted) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    if (ZSTD_isError(wanted)) fail(ExitCode::bad_data, "{}: is damaged zstd data: {}", path, ZSTD_getErrorName(wanted));
    // 0: a frame has ended, and all of its text is there.
    if (wanted == 0 && only_zeros(packed.substr(in.pos))) return text;
    if (in.pos == in.size && out.pos < room) fail(ExitCode::bad_data, "{}: is truncated zstd data", path);
  }
}

}  // namespace sestina
