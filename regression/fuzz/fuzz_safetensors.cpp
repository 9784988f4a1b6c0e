// Any bytes are either refused with Error(bad_data) or give tensors that lie inside the image.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/hf/safetensors.hpp"
#include "kernels/base/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view image(reinterpret_cast<const char*>(data), size);
  try {
    for (const auto& [name, tensor] : sestina::parse_safetensors(image, "input")) {
      const auto begin = reinterpret_cast<const std::uint8_t*>(tensor.data);
      if (begin < data || tensor.bytes > size || begin + tensor.bytes > data + size) std::abort();
    }
  } catch (const sestina::Error& error) {
    if (error.code() != sestina::ExitCode::bad_data) std::abort();
  }
  return 0;
}
