// Input: u16 size of the .bin, then an .idx image. It is either refused with Error(bad_data), or every document lies
// inside the .bin and is found again by its own start.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "io/tokens/token_file_forms.hpp"
#include "kernels/base/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint16_t bin_bytes = 0;
  if (size < sizeof bin_bytes) return 0;
  std::memcpy(&bin_bytes, data, sizeof bin_bytes);
  const std::string_view image(reinterpret_cast<const char*>(data) + sizeof bin_bytes, size - sizeof bin_bytes);
  try {
    const auto index = sestina::parse_megatron_index(image, bin_bytes, "input");
    std::vector<std::uint64_t> starts;
    for (std::uint64_t document = 0; document < index.documents; ++document) {
      const std::uint64_t start = index.document_start(document);
      if (start > index.tokens) std::abort();
      index.document_starts(start, start + 1, starts);
      if (start < index.tokens && (starts.size() != 1 || starts.front() != start)) std::abort();
    }
  } catch (const sestina::Error& error) {
    if (error.code() != sestina::ExitCode::bad_data) std::abort();
  }
  return 0;
}
