// Text before tokenization: UTF-8 made valid, canonical composition (NFC), character classes. No Kokkos.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace sestina {

// Returns the code point that begins at text[at], which must be valid UTF-8; *bytes gets its length, 1 to 4.
char32_t code_point_at(std::string_view text, std::size_t at, int* bytes);
void append_utf8(std::string& text, char32_t c);

bool is_valid_utf8(std::string_view text);
// Makes every maximal ill-formed subpart one U+FFFD (Unicode 15.0, section 3.9, "U+FFFD Substitution of Maximal
// Subparts"), as Python's bytes.decode(errors="replace") does.
std::string repair_utf8(std::string_view text);
// Returns how many bytes at the end begin a character that more bytes may complete: 0 to 3. The text before them is
// repaired in the same way whatever follows, as by Python's incremental decoder.
std::size_t unfinished_utf8(std::string_view text);

// Returns Normalization Form C of valid UTF-8 (Unicode Standard Annex 15) by Unicode 9.0, as in the `tokenizers`
// package; characters that came later are left as they are. It takes n log n time in the worst case.
std::string nfc(std::string_view text);

bool is_space(char32_t c);  // Unicode's White_Space
// True for letters, marks, decimal digits, connector punctuation, join controls: \w of Unicode Technical Standard 18,
// annex C, by Unicode 16.0.
bool is_word(char32_t c);

}  // namespace sestina
