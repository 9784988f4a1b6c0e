#include "io/tokenizer/bpe_bytes.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace sestina {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<char32_t, 256> symbol;
  std::array<int, 0x100 + 68> byte;  // -1: not in the alphabet
};

constexpr int kNone = -1;

const Alphabet& alphabet() {
  static const Alphabet instance = [] {
    Alphabet a;
    a.byte.fill(kNone);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      a.symbol[b] = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
      a.byte[a.symbol[b]] = b;
    }
    return a;
  }();
  return instance;
}

}  // namespace

char32_t byte_symbol(unsigned char byte) { return alphabet().symbol[byte]; }

std::vector<unsigned char> bytes_by_symbol() {
  std::vector<unsigned char> bytes(256);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  std::sort(bytes.begin(), bytes.end(), [](auto a, auto b) { return byte_symbol(a) < byte_symbol(b); });
  return bytes;
}

std::string bytes_to_symbols(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (unsigned char byte : bytes) {
    const char32_t c = byte_symbol(byte);  // at most U+0143: one or two bytes of UTF-8
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else {
      text += static_cast<char>(0xC0 | (c >> 6));
      text += static_cast<char>(0x80 | (c & 0x3F));
    }
  }
  return text;
}

std::optional<std::string> symbols_to_bytes(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const auto lead = static_cast<unsigned char>(token[i]);
    char32_t c = lead;
    if (lead >= 0x80) {
      if (lead < 0xC2 || lead > 0xDF || i + 1 >= token.size()) return std::nullopt;
      c = (lead & 0x1FU) << 6 | (static_cast<unsigned char>(token[i + 1]) & 0x3FU);
    }
    if (c >= alphabet().byte.size() || alphabet().byte[c] == kNone) return std::nullopt;
    bytes += static_cast<char>(alphabet().byte[c]);
    i += lead < 0x80 ? 1 : 2;
  }
  return bytes;
}

}  // namespace sestina
