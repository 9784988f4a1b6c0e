// Byte-level BPE against ids made with the Python package `tokenizers` (regression/oracle/tokenizer_reference.py), and
// what must hold without a reference: round trips, no dependence on threads or cuts, long runs, refusals.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/tokenizer/tokenizer.hpp"
#include "io/tokenizer/tokenizer_text.hpp"
#include "regression/unit/io/test_files.hpp"
#include "sestina_test_paths.hpp"

namespace sestina {
namespace {

using nlohmann::json;
using test::expect_error;
using Ids = std::vector<std::int32_t>;

const std::string kGolden = std::string(SESTINA_SOURCE_DIR) + "/regression/golden/tokenizer/";

const json& cases() {
  static const json instance = json::parse(std::ifstream(kGolden + "cases.json"));
  return instance;
}

// CRC-32 as in zip files (reflected polynomial 0xEDB88320).
std::uint32_t crc32(const Ids& ids, std::uint32_t crc) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      t[i] = i;
      for (int bit = 0; bit < 8; ++bit) t[i] = t[i] >> 1 ^ (t[i] & 1 ? 0xEDB88320U : 0);
    }
    return t;
  }();
  crc = ~crc;
  for (const std::int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8)
      crc = crc >> 8 ^ table[(crc ^ static_cast<std::uint32_t>(id) >> shift) & 0xFF];
  }
  return ~crc;
}

bool is_scalar(std::uint32_t point) { return point < 0xD800 || point > 0xDFFF; }

std::string utf8(char32_t point) {
  std::string text;
  append_utf8(text, point);
  return text;
}

class Golden : public testing::TestWithParam<const char*> {
 protected:
  const Tokenizer tokenizer_ = Tokenizer::load(kGolden + GetParam() + ".json");
};

TEST_P(Golden, TextsHaveTheReferenceIds) {
  const auto texts = cases()["texts"].get<std::vector<std::string>>();
  const auto expected = cases()["ids"][GetParam()].get<std::vector<Ids>>();
  ASSERT_EQ(texts.size(), expected.size());
  ASSERT_GT(texts.size(), 200u);
  std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto parallel = tokenizer_.encode(views, 3);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer_.encode(texts[i]), expected[i]) << texts[i];
    EXPECT_EQ(parallel[i], expected[i]) << texts[i];
  }
}

// All of planes 0 to 3, where letters, digits, spaces and marks are, and samples of the others.
TEST_P(Golden, CodePointsHaveTheReferenceIdsInEverySurrounding) {
  const auto block = cases()["block"].get<std::uint32_t>();
  const auto expected = cases()["blocks"][GetParam()].get<std::vector<std::uint32_t>>();
  ASSERT_EQ(expected.size() * block, 0x110000u);
  for (std::uint32_t b = 0; b < expected.size(); ++b) {
    if (b * block >= 0x34000 && b % 16 != 0) continue;
    std::uint32_t crc = 0;
    for (std::uint32_t point = b * block; point < (b + 1) * block; ++point) {
      if (!is_scalar(point)) continue;
      const std::string c = utf8(point);
      crc = crc32(
          tokenizer_.encode("a" + c + "\u0334" + c + "\u0301 " + c + c + "1" + c + "\n " + c + " 's" + c + "\u0345"),
          crc);
    }
    EXPECT_EQ(crc, expected[b]) << "code points " << b * block << " on";
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, Golden, testing::Values("gpt2", "gpt2_prefix", "llama3", "qwen"),
                         [](const auto& info) { return std::string(info.param); });

const Tokenizer& gpt2() {
  static const Tokenizer instance = Tokenizer::load(kGolden + "gpt2.json");
  return instance;
}

std::string decode(const Tokenizer& t, const Ids& ids, bool skip = false) {
  return t.decode(ids.data(), ids.size(), skip);
}

TEST(Tokenizer, AllCodePointsComeBack) {
  std::size_t points = 0;
  for (std::uint32_t first = 0; first < 0x110000; first += 256) {
    std::string text;
    for (std::uint32_t p = first; p < first + 256; ++p) {
      if (is_scalar(p)) append_utf8(text, p), ++points;
    }
    ASSERT_EQ(decode(gpt2(), gpt2().encode(text)), text) << first;
  }
  EXPECT_EQ(points, 1'112'064u);
}

TEST(Tokenizer, IllFormedTextIsReplacedPerMaximalSubpart) {
  // Unicode 15.0, table 3-8 and the lines around it; what Python's bytes.decode(errors="replace") gives.
  const std::string r = "\uFFFD";
  const std::pair<std::string, std::string> pairs[] = {
      {"a\xFFz", "a" + r + "z"},
      {"\xC0\xAF", r + r},
      {"\xE0\x80\x80", r + r + r},
      {"\xF0\x9F\x98", r},
      {"\xF0\x9F\x98z", r + "z"},
      {"\xED\xA0\x80", r + r + r},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", r + r + r + r + r + "A" + r + r + "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", r + r + r + r + "A"},
      {"\xC3", r},
      {"caf\xC3\xA9", "caf\u00E9"}};
  for (const auto& [bytes, repaired] : pairs) {
    EXPECT_EQ(repair_utf8(bytes), repaired);
    EXPECT_EQ(is_valid_utf8(bytes), bytes == repaired);
    EXPECT_EQ(gpt2().encode(bytes), gpt2().encode(repaired));
  }
}

TEST(Tokenizer, CanonicalCompositionOrdersAndComposes) {
  EXPECT_EQ(nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(nfc("x e\u0301 y"), "x \u00E9 y");
  EXPECT_EQ(nfc("\u1112\u1161\u11AB"), "\uD55C");
  EXPECT_EQ(nfc("a\u0345\u0301\u0316"), "\u00E1\u0316\u0345");  // by combining class 220, 230, 240
  EXPECT_EQ(nfc("\u212B"), "\u00C5");                           // singleton
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093C");                     // excluded from composition
  EXPECT_EQ(nfc("\u00E9t\u00E9 \u4E2D"), "\u00E9t\u00E9 \u4E2D");
  EXPECT_EQ(nfc("a\u1ABF\u0316"), "a\u1ABF\u0316");  // newer than Unicode 9.0: left alone
  std::string marks = "a";
  for (int i = 0; i < 200'000; ++i) marks += i % 2 ? "\u0301" : "\u0316";
  EXPECT_EQ(nfc(marks).size(), marks.size() - 1);  // and not in quadratic time
}

TEST(Tokenizer, AddedTokensAreFoundAndSkipped) {
  const Ids ids = gpt2().encode("one<|endoftext|>two");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), gpt2().end_of_document()), 1);
  EXPECT_EQ(gpt2().end_of_document(), gpt2().id_of("<|endoftext|>"));
  EXPECT_EQ(decode(gpt2(), ids), "one<|endoftext|>two");
  EXPECT_EQ(decode(gpt2(), ids, true), "onetwo");
  EXPECT_EQ(gpt2().id_of("no such token"), -1);
  EXPECT_EQ(gpt2().vocab_size(), gpt2().id_of("l r") + 1);
}

TEST(Tokenizer, IdsThatNobodyHasDecodeToNothing) {
  const Ids ids{-1, 0, 1 << 30};
  EXPECT_EQ(decode(gpt2(), ids), decode(gpt2(), {0}));
}

// 2 MB of one character: neither the pattern nor the merges may take more than linear time, or recurse.
TEST(Tokenizer, LongRunsOfOneCharacter) {
  for (const char* name : {"gpt2", "llama3", "qwen"}) {
    const Tokenizer tokenizer = Tokenizer::load(kGolden + name + ".json");
    for (const char c : {' ', '\n', '=', 'a'}) {
      const std::string text(2'000'000, c);
      EXPECT_EQ(decode(tokenizer, tokenizer.encode(text)), text) << name << " " << static_cast<int>(c);
    }
  }
}

// The same run through the general path (a byte at the end makes the piece mixed) and through the one for runs.
TEST(Tokenizer, RunsAreMergedAsAnythingElse) {
  for (const std::size_t length : {97u, 100u, 128u, 255u, 1001u, 4096u}) {
    const std::string run(length, '=');
    const Ids mixed = gpt2().encode(run + "!"), uniform = gpt2().encode(run);
    EXPECT_EQ(decode(gpt2(), mixed), run + "!");
    const std::size_t common = uniform.size() - 2;  // the end may be merged with what follows
    EXPECT_EQ(Ids(mixed.begin(), mixed.begin() + common), Ids(uniform.begin(), uniform.begin() + common)) << length;
  }
}

std::string words(int count) {
  static const char* kWords[] = {"river ", "stone ", "door.\n", "a winter, ",   "lamp\n", "name; ",
                                 "it's ",  "2026 ",  "\n\n",    "K\u00F6ln\nx", "  "};
  std::string text;
  std::uint32_t state = 1;
  for (int i = 0; i < count; ++i)
    text += kWords[(state = state * 1664525u + 1013904223u) >> 16 & 0xFFFF ? (state >> 16) % 11 : 0];
  return text;
}

TEST(Tokenizer, CutsDoNotShow) {
  const std::string text = words(400'000);  // long enough to be cut for several threads
  ASSERT_GT(text.size(), 2'000'000u);
  for (const char* name : {"gpt2", "llama3", "qwen"}) {
    const Tokenizer tokenizer = Tokenizer::load(kGolden + name + ".json");
    EXPECT_EQ(tokenizer.encode(std::vector<std::string_view>{text, "", "a"}, 4),
              (std::vector<Ids>{tokenizer.encode(text), {}, tokenizer.encode("a")}));
  }
}

TEST(Tokenizer, Empty) {
  EXPECT_TRUE(gpt2().encode("").empty());
  EXPECT_TRUE(gpt2().encode(std::vector<std::string_view>{}, 2).empty());
  EXPECT_EQ(gpt2().decode(nullptr, 0, false), "");
}

}  // namespace
}  // namespace sestina
