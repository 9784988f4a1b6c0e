// The classes that a pattern may name, against numbers of the Python package `tokenizers`
// (regression/oracle/unicode_tables.py), whatever the Unicode of PCRE2; and which words it refuses.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "io/tokenizer/tokenizer_pattern.hpp"
#include "io/tokenizer/tokenizer_text.hpp"
#include "io/tokenizer/unicode_class.hpp"
#include "regression/unit/io/test_files.hpp"
#include "sestina_test_paths.hpp"

namespace sestina {
namespace {

using nlohmann::json;
using test::expect_error;

// All code points but surrogates, in order.
const std::string& all_points() {
  static const std::string instance = [] {
    std::string text;
    for (char32_t c = 0; c < 0x110000; c = c == 0xD7FF ? 0xE000 : c + 1) append_utf8(text, c);
    return text;
  }();
  return instance;
}

// How many code points, and CRC-32 (as in zip files) of the first and last of each range, as 32-bit numbers.
class ClassSummary {
 public:
  void add(char32_t first, char32_t last) {
    if (first < 0xD800 && last >= 0xE000) return add(first, 0xD7FF), add(0xE000, last);
    count += last + 1 - first;
    for (const std::uint32_t point : {first, last}) {
      for (int bit = 0; bit < 32; ++bit) {
        const bool odd = ((crc_ ^ point >> bit) & 1U) != 0;
        crc_ = crc_ >> 1 ^ (odd ? 0xEDB88320U : 0);
      }
    }
  }
  std::uint32_t crc() const { return ~crc_; }
  std::uint32_t count = 0;

 private:
  std::uint32_t crc_ = ~0U;
};

ClassSummary found_by(const std::string& pattern) {
  const std::string& text = all_points();
  const Pattern compiled = Pattern::regex(pattern, "t");
  Pattern::Match match;
  ClassSummary summary;
  for (std::size_t at = 0; at < text.size() && compiled.find(text, at, match); at = match.end()) {
    std::size_t last = match.end() - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    int bytes = 0;
    summary.add(code_point_at(text, match.begin(), &bytes), code_point_at(text, last, &bytes));
  }
  return summary;
}

// By the property of the library with what it lacks, by ranges, and as what is left of the complement.
TEST(UnicodeClass, EveryCodePointOfEveryClassIsThatOfThePackage) {
  const json expected =
      json::parse(std::ifstream(std::string(SESTINA_SOURCE_DIR) + "/regression/golden/tokenizer/classes.json"));
  ASSERT_GT(expected.size(), 200u);
  for (const auto& [name, numbers] : expected.items()) {
    SCOPED_TRACE(name);
    const auto known = find_unicode_class(name);
    ASSERT_TRUE(known);
    ClassSummary ranges, rest;
    for (const CodeRange& r : known->ranges) ranges.add(r.first, r.last);
    for (const CodeRange& r : complement(known->ranges)) rest.add(r.first, r.last);
    EXPECT_EQ(ranges.count, numbers[0]);
    EXPECT_EQ(ranges.crc(), numbers[1]);
    EXPECT_EQ(ranges.count + rest.count, 0x110000u - 0x800u);
    if (ranges.count == 0) continue;
    const ClassSummary found = found_by("\\p{" + name + "}+");
    EXPECT_EQ(found.count, numbers[0]);
    EXPECT_EQ(found.crc(), numbers[1]);
    if (name.size() > 2 || rest.count == 0) continue;  // of the categories the complements too
    EXPECT_EQ(found_by("[\\P{" + name + "}]+").crc(), rest.crc());
    EXPECT_EQ(found_by("\\p{^" + name + "}+").crc(), rest.crc());
  }
}

TEST(UnicodeClass, NamesAreThoseOfThePackage) {
  EXPECT_EQ(find_unicode_class("uppercase letter")->ranges.size(), find_unicode_class("Lu")->ranges.size());
  EXPECT_EQ(find_unicode_class("han")->ranges.size(), find_unicode_class("Han")->ranges.size());
  for (const char* name : {"Script=Han", "sc=Han", "Script_Extensions=Han", "scx:Han", "gc=L", "L&", "Xan", "InGreek",
                           "Emoji", "Alphabetic", "", "^", "Hanx"}) {
    SCOPED_TRACE(name);
    expect_error(ExitCode::bad_data, {"t: pattern"}, [&] { Pattern::regex("\\p{" + std::string(name) + "}", "t"); });
  }
}

// Scripts, not what scripts share: the middle dot of Katakana, the Arabic comma and the danda are Common.
TEST(UnicodeClass, ScriptsAreNotScriptExtensions) {
  EXPECT_EQ(found_by("\\p{Han}").count, 0u + found_by("[\\p{Han}]").count);
  const auto finds = [](const std::string& name, const std::string& text) {
    Pattern::Match match;
    return Pattern::regex("\\p{" + name + "}", "t").find(text, 0, match);
  };
  EXPECT_TRUE(finds("Han", "\u597D"));
  EXPECT_FALSE(finds("Han", "\u3001\u3002\u300C\u30FC"));
  EXPECT_FALSE(finds("Katakana", "\u30FC\u30FB\uFF70"));
  EXPECT_FALSE(finds("Arabic", "\u060C\u061F\u0640"));
  EXPECT_FALSE(finds("Devanagari", "\u0964\u0965"));
}

TEST(UnicodeClass, WordsAndDigitsOfTheTextItself) {
  std::uint32_t words = 0;
  for (char32_t c = 0; c < 0x110000; c = c == 0xD7FF ? 0xE000 : c + 1) words += is_word(c) ? 1 : 0;
  EXPECT_EQ(words, 144'667u);  // \w of the Rust crate regex 1.13
  EXPECT_TRUE(is_word(0x1C89) && is_word(0x24B6) && is_word(0x200D) && is_word(0x2167));
  EXPECT_FALSE(is_word(0x00B2) || is_word(0x11DE0) || is_word(0x1F600));
}

}  // namespace
}  // namespace sestina
