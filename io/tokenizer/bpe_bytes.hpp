// The byte alphabet of byte-level BPE: every byte has a printable character, so that tokens are text in tokenizer.json.
// 0x21-7E, A1-AC and AE-FF stand for themselves, the other 68 bytes for U+0100 upward (GPT-2's table). No Kokkos.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sestina {

char32_t byte_symbol(unsigned char byte);                             // its character
std::vector<unsigned char> bytes_by_symbol();                         // all 256 in ascending order of their characters
std::string bytes_to_symbols(std::string_view bytes);                 // UTF-8 text of the characters
std::optional<std::string> symbols_to_bytes(std::string_view token);  // none when a character is outside the alphabet

}  // namespace sestina
