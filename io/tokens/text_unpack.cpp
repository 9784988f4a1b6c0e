#include "io/tokens/text_unpack.hpp"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

#include "kernels/base/error.hpp"

namespace sestina {

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
    if (status == Z_STREAM_END && packed.empty()) return text;
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
  std::string text;
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  for (std::size_t wanted = 1;;) {
    const std::size_t before = text.size(), room = ZSTD_DStreamOutSize();
    text.resize(before + room);
    ZSTD_outBuffer out{text.data() + before, room, 0};
    wanted = ZSTD_decompressStream(stream.get(), &out, &in);
    text.resize(before + out.pos);
    if (ZSTD_isError(wanted)) fail(ExitCode::bad_data, "{}: is damaged zstd data: {}", path, ZSTD_getErrorName(wanted));
    if (in.pos < in.size || out.pos == room) continue;  // more frames, or output that did not fit
    if (wanted != 0) fail(ExitCode::bad_data, "{}: is truncated zstd data", path);
    return text;
  }
}

}  // namespace sestina
