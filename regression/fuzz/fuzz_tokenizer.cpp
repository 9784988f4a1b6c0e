// Input: u8 length of a text, the text, then a tokenizer.json. It is either refused with Error(bad_data), or encodes
// the text, valid or not, to ids below vocab_size and decodes them to valid UTF-8.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "io/tokenizer/tokenizer.hpp"
#include "io/tokenizer/tokenizer_text.hpp"
#include "kernels/base/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t length = std::min<std::size_t>(data[0], input.size());
  const std::string_view text = input.substr(0, length);
  try {
    const auto tokenizer = sestina::Tokenizer::parse(input.substr(length), "input");
    const auto ids = tokenizer.encode(text);
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    }
    if (!sestina::is_valid_utf8(tokenizer.decode(ids.data(), ids.size(), false))) std::abort();
    if (tokenizer.encode({text, text}, 2).at(1) != ids) std::abort();
  } catch (const sestina::Error& error) {
    if (error.code() != sestina::ExitCode::bad_data) std::abort();
  }
  return 0;
}
