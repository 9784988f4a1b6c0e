// Any bytes are either refused with Error(bad_data) or give a manifest whose own text reads back to itself. The input is
// tried as it is and with a right digest appended, so that the parser behind the digest is reached.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/manifest.hpp"
#include "kernels/error.hpp"

namespace {

void try_parse(std::string_view text) {
  try {
    const std::string again = sestina::manifest_text(sestina::parse_manifest(text, "input"));
    if (sestina::manifest_text(sestina::parse_manifest(again, "again")) != again) std::abort();
  } catch (const sestina::Error& error) {
    if (error.code() != sestina::ExitCode::bad_data) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_parse(text);
  try_parse(sestina::seal_manifest(text));
  return 0;
}
