// Any bytes are either refused with Error(bad_data) or give a manifest whose own text reads back to itself; so with a
// rank's part of one. The input is tried as it is and with a right digest appended, so that the parser after the
// digest is reached.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/checkpoint/checkpoint_part.hpp"
#include "io/checkpoint/manifest.hpp"
#include "kernels/base/error.hpp"

namespace {

template <class Parse, class Text>
void try_one(std::string_view text, const Parse& parse, const Text& text_of) {
  try {
    const std::string again = text_of(parse(text, "input"));
    if (text_of(parse(again, "again")) != again) std::abort();
  } catch (const sestina::Error& error) {
    if (error.code() != sestina::ExitCode::bad_data) std::abort();
  }
}

void try_parse(std::string_view text) {
  try_one(text, sestina::parse_manifest, sestina::manifest_text);
  try_one(text, sestina::parse_part, sestina::part_text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_parse(text);
  try_parse(sestina::seal_manifest(text));
  return 0;
}
