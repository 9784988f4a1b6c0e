#include "io/tokenizer/tokenizer_text.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "io/tokenizer/unicode_class.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Sequence {
  int bytes;  // length of the sequence, or of the maximal ill-formed subpart
  bool valid;
};

bool continues(std::string_view text, std::size_t at, unsigned low, unsigned high) {
  return at < text.size() && static_cast<unsigned char>(text[at]) >= low &&
         static_cast<unsigned char>(text[at]) <= high;
}

// Table 3-7 of the Unicode Standard: which second bytes may follow a lead byte.
Sequence sequence_at(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (!continues(text, at + 1, low, high)) return {1, false};
  for (int i = 2; i < length; ++i) {
    if (!continues(text, at + i, 0x80, 0xBF)) return {i, false};
  }
  return {length, true};
}

// Returns the first byte at or after `at` that is not ASCII; it looks at eight at a time.
std::size_t skip_ascii(std::string_view text, std::size_t at) {
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if (word & 0x8080808080808080ULL) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

std::size_t first_ill_formed(std::string_view text) {
  for (std::size_t at = 0; (at = skip_ascii(text, at)) < text.size();) {
    const Sequence s = sequence_at(text, at);
    if (!s.valid) return at;
    at += s.bytes;
  }
  return text.size();
}

// Code points that got a combining class or a composition after Unicode 9.0. The `tokenizers` package normalizes
// by 9.0, where they neither move nor combine; so they are kept as they are, whatever the version of utf8proc.
struct Range {
  char32_t first, last;
};
constexpr Range kInert[] = {
    {0x5C8, 0x5C9},     {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1AF0},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105C9, 0x105C9}, {0x105D2, 0x105D2}, {0x105DA, 0x105DA},
    {0x105E4, 0x105E4}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10ECB, 0x10ECF},
    {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x11382, 0x11385}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x11391},
    {0x113B8, 0x113B8}, {0x113BB, 0x113BB}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113C9},
    {0x113CE, 0x113D0}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11935, 0x11935},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x1611E, 0x16129}, {0x1612F, 0x1612F}, {0x16D63, 0x16D63}, {0x16D67, 0x16D6A},
    {0x16FF0, 0x16FF1}, {0x1D127, 0x1D128}, {0x1D250, 0x1D252}, {0x1D25B, 0x1D25C}, {0x1D25F, 0x1D25F},
    {0x1D280, 0x1D281}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF},
    {0x1E6F5, 0x1E6F5}};

// Word characters beyond the general categories: join controls and symbols that count as alphabetic (Other_Alphabetic).
constexpr Range kWord[] = {
    {0x200C, 0x200D}, {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};

template <std::size_t N>
bool is_in(const Range (&ranges)[N], char32_t c) {
  const auto* range =
      std::lower_bound(ranges, ranges + N, c, [](const Range& r, char32_t value) { return r.last < value; });
  return range != ranges + N && range->first <= c;
}

// Puts decomposed code points into canonical order, composes and appends them; leaves `points` empty.
void append_composed(std::string& out, std::vector<utf8proc_int32_t>& points) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto first = points.begin(); first != points.end();) {
    first = std::find_if(first, points.end(), [&](auto c) { return combining_class(c) != 0; });
    const auto last = std::find_if(first, points.end(), [&](auto c) { return combining_class(c) == 0; });
    std::stable_sort(first, last, [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    first = last;
  }
  const auto length = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  SESTINA_REQUIRE(length >= 0, "utf8proc: {}", utf8proc_errmsg(length));
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(out, static_cast<char32_t>(points[i]));
  points.clear();
}

// Appends the NFC of one stretch of text.
void append_nfc(std::string& out, std::string_view text) {
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    int bytes = 0;
    const char32_t c = code_point_at(text, at, &bytes);
    at += bytes;
    if (is_in(kInert, c)) {
      append_composed(out, points);
      append_utf8(out, c);
      continue;
    }
    utf8proc_int32_t parts[16];  // the longest canonical decomposition has four
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 16, UTF8PROC_DECOMPOSE, &boundary);
    SESTINA_REQUIRE(count >= 0 && count <= 16, "utf8proc: {}", utf8proc_errmsg(count));
    points.insert(points.end(), parts, parts + count);
  }
  append_composed(out, points);
}

}  // namespace

char32_t code_point_at(std::string_view text, std::size_t at, int* bytes) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return *bytes = 1, lead;
  if (lead < 0xE0) return *bytes = 2, (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  if (lead < 0xF0) return *bytes = 3, (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  return *bytes = 4, (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

void append_utf8(std::string& text, char32_t c) {
  const auto push = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xC0 | c >> 6), push(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    push(0xE0 | c >> 12), push(0x80 | (c >> 6 & 0x3F)), push(0x80 | (c & 0x3F));
  } else {
    push(0xF0 | c >> 18), push(0x80 | (c >> 12 & 0x3F)), push(0x80 | (c >> 6 & 0x3F)), push(0x80 | (c & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) { return first_ill_formed(text) == text.size(); }

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t good = first_ill_formed(text);
    out += text.substr(0, good);
    if (good == text.size()) break;
    out += kReplacement;
    text.remove_prefix(good + sequence_at(text, good).bytes);
  }
  return out;
}

std::size_t unfinished_utf8(std::string_view text) {
  constexpr std::size_t most = 3;
  for (std::size_t n = 1; n <= std::min(most, text.size()); ++n) {
    const auto lead = static_cast<unsigned char>(text[text.size() - n]);
    if (lead < 0xC2 || lead > 0xF4) continue;
    const Sequence s = sequence_at(text, text.size() - n);
    return !s.valid && s.bytes == static_cast<int>(n) ? n : 0;
  }
  return 0;
}

// Code points below U+0300 are starters that neither decompose nor join a character before them, so the text falls into
// independent stretches: at most one such character, then code points from U+0300 on. Only those are worked on.
std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const auto from_u0300 = [&](std::size_t at) { return static_cast<unsigned char>(text[at]) >= 0xCC; };
  const auto continuation = [&](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; };
  std::size_t copied = 0;
  for (std::size_t at = 0; (at = skip_ascii(text, at)) < text.size();) {
    if (!from_u0300(at)) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    if (begin > copied) {
      do --begin;
      while (begin > copied && continuation(begin));
    }
    while (at < text.size() && (from_u0300(at) || continuation(at))) ++at;
    out += text.substr(copied, begin - copied);
    append_nfc(out, text.substr(begin, at - begin));
    copied = at;
  }
  out += text.substr(copied);
  return out;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  const Category category = category_of(c);
  return category <= Category::Nl || category == Category::Pc || is_in(kWord, c);
}

}  // namespace sestina
