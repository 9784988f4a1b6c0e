// What tokenizer.json files are refused, and with which words; patterns; other forms that are read.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/tokenizer/pretokenize.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

using nlohmann::json;
using test::expect_error;
using Ids = std::vector<std::int32_t>;

// A tokenizer of four tokens: a, b, ab, Ġ.
json small() {
  return json::parse(R"({"added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3}, "merges": ["a b"]}})");
}

Tokenizer parse(const json& j) { return Tokenizer::parse(j.dump(), "t.json"); }

TEST(TokenizerJson, Small) {
  const Tokenizer t = parse(small());
  EXPECT_EQ(t.encode("ab ba"), (Ids{2, 3, 1, 0}));
  EXPECT_EQ(t.encode("axb"), (Ids{2}));  // x is left out before merging, as in the package
  EXPECT_EQ(t.vocab_size(), 4);
  EXPECT_EQ(t.end_of_document(), -1);
}

TEST(TokenizerJson, OtherForms) {
  json j = small();
  j["model"]["merges"] = json::array({json::array({"a", "b"})});
  EXPECT_EQ(parse(j).encode("ab"), (Ids{2}));
  j["model"]["unk_token"] = "b";
  EXPECT_EQ(parse(j).encode("xxa"), (Ids{1, 1, 0}));
  j["model"]["fuse_unk"] = true;
  EXPECT_EQ(parse(j).encode("xxa"), (Ids{1, 0}));
  j = small();
  j["model"]["merges"] = json::array();
  EXPECT_EQ(parse(j).encode("ab"), (Ids{0, 1}));
  j["model"]["ignore_merges"] = true;
  EXPECT_EQ(parse(j).encode("ab"), (Ids{2}));
  j = small();
  j["pre_tokenizer"] =
      json::parse(R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"String": "b."},
    "behavior": "Removed", "invert": false}, {"type": "ByteLevel", "add_prefix_space": true, "use_regex": false}]})");
  EXPECT_EQ(parse(j).encode("ab.abb"), (Ids{3, 0, 3, 2, 1}));
  j["pre_tokenizer"]["pretokenizers"][0] = json::parse(R"({"type": "Digits", "individual_digits": true})");
  EXPECT_EQ(parse(j).encode("ab"), (Ids{3, 2}));
  j["added_tokens"] = json::parse(R"([{"id": 4, "content": "ba", "special": true}])");
  EXPECT_EQ(parse(j).encode("abab"), (Ids{3, 0, 4, 3, 1}));
  EXPECT_EQ(parse(j).vocab_size(), 5);
}

// White space that two tokens claim, and digits newer than those of the patterns, as in the package.
TEST(TokenizerJson, SpaceAndDigits) {
  json j = small();
  j["added_tokens"] = json::parse(R"([{"id": 4, "content": "x", "rstrip": true, "normalized": false},
    {"id": 5, "content": "\n", "lstrip": true, "rstrip": true, "normalized": false}])");
  EXPECT_EQ(parse(j).encode("x\n\nab"), (Ids{4, 2}));
  EXPECT_EQ(parse(j).encode("ax \n b\n \nx"), (Ids{0, 4, 1, 5, 4}));
  j = small();
  j["pre_tokenizer"] = json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": false}, {"type": "ByteLevel", "add_prefix_space": true, "use_regex": false}]})");
  EXPECT_EQ(parse(j).encode("a\U00011DE0\U00011DE9\U00016FF4b"), (Ids{3, 0, 3, 3, 1}));
  EXPECT_EQ(parse(j).encode("a\u00B2\u2167b"), (Ids{3, 0, 3, 3, 1}));
  EXPECT_EQ(parse(j).encode("a\u3250b"), (Ids{3, 2}));
}

TEST(TokenizerJson, Refused) {
  const auto refused = [](const char* pointer, const json& value, std::initializer_list<std::string> said) {
    json j = small();
    j[json::json_pointer(pointer)] = value;
    SCOPED_TRACE(std::string(pointer) + " = " + value.dump());
    expect_error(ExitCode::bad_data, {"t.json"}, [&] { parse(j); });
    expect_error(ExitCode::bad_data, said, [&] { parse(j); });
  };
  refused("/model/type", "WordPiece", {"model", "WordPiece", "BPE"});
  refused("/model/type", "Unigram", {"Unigram", "BPE"});
  refused("/pre_tokenizer/type", "Metaspace", {"Metaspace", "ByteLevel"});
  refused("/pre_tokenizer", nullptr, {"pre_tokenizer", "byte-level"});
  refused("/pre_tokenizer", json::parse(R"({"type": "Sequence", "pretokenizers": []})"), {"ByteLevel"});
  for (const char* kind :
       {"Lowercase", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Strip", "ByteLevel", "Precompiled"}) {
    refused("/normalizer", {{"type", kind}}, {"normalizer", kind, "NFC"});
    refused("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", kind}}}}}, {kind});
  }
  for (const char* behavior : {"MergedWithPrevious", "MergedWithNext", "Contiguous"}) {
    const json split{{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", behavior}};
    refused("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, {{"type", "ByteLevel"}}}}}, {behavior});
  }
  refused("/decoder", json::parse(R"({"type": "WordPiece"})"), {"decoder", "ByteLevel"});
  refused("/model/byte_fallback", true, {"byte_fallback"});
  refused("/model/dropout", 0.1, {"dropout"});
  refused("/model/end_of_word_suffix", "</w>", {"end_of_word_suffix"});
  refused("/model/unk_token", "zzz", {"unk_token", "zzz"});
  refused("/model/vocab", json::array(), {"vocab"});
  refused("/model/vocab/a", -1, {"id -1"});
  refused("/model/vocab/a", 1, {"id 1 twice"});
  refused("/model/vocab/a", 1.5, {"1.5"});
  refused("/model/vocab/a", 4'000'000'000, {"4000000000"});
  refused("/model/merges", "a b", {"merges"});
  refused("/model/merges/0", "a b c", {"a b c"});
  refused("/model/merges/0", 3, {"merges"});
  refused("/model/merges/0", "a zz", {"zz", "not in the vocabulary"});
  refused("/model/merges/0", "b a", {"ba", "not in the vocabulary"});
  refused("/added_tokens", 3, {"added_tokens"});
  refused("/added_tokens/0", json::parse(R"({"id": 9, "content": ""})"), {"added_tokens"});
  refused("/added_tokens/0", json::parse(R"({"id": 2, "content": "x"})"), {"\"x\"", "2"});
  refused("/added_tokens/0", json::parse(R"({"id": 9, "content": "a"})"), {"\"a\"", "9"});
  refused("/added_tokens/0", json::parse(R"({"id": 4, "content": "x", "special": "yes"})"), {"special"});
  refused("/added_tokens/0", json::parse(R"({"id": 9, "content": "x"})"), {"\"x\"", "id 9", "other than 4"});
}

TEST(TokenizerJson, DamagedText) {
  for (const std::string text : {"", "{", "[]", "null", "{\"a\":\xFF}", "not json"}) {
    expect_error(ExitCode::bad_data, {"t.json"}, [&] { Tokenizer::parse(text, "t.json"); });
  }
  std::string deep = "{\"x\":";
  for (int i = 0; i < 1'000'000; ++i) deep += '[';
  expect_error(ExitCode::bad_data, {"nested more than"}, [&] { Tokenizer::parse(deep, "t.json"); });
  expect_error(ExitCode::input_missing, {"nowhere.json"}, [] { Tokenizer::load("/nonexistent/nowhere.json"); });
}

std::vector<std::string> pieces(std::string_view pattern, std::string_view text) {
  std::vector<PreStep> steps;
  steps.push_back(split_step(Pattern::regex(pattern, "t")));
  Pattern::Match match;
  std::vector<std::string> result;
  PreTokenizer(std::move(steps)).split(text, match, [&](std::string_view piece) { result.emplace_back(piece); });
  return result;
}

TEST(TokenizerPattern, MeansWhatOnigurumaMeans) {
  using P = std::vector<std::string>;
  EXPECT_EQ(pieces(kGpt2Pattern, "it's  2026\n x"), (P{"it", "'s", " ", " 2026", "\n", " x"}));
  EXPECT_EQ(pieces(kLlama3Pattern, "IT'S 12345!\n\nx"), (P{"IT", "'S", " ", "123", "45", "!\n\n", "x"}));
  EXPECT_EQ(pieces(kQwenPattern, "12 \xC2\xA0 x"), (P{"1", "2", " \xC2\xA0", " x"}));
  EXPECT_EQ(pieces(R"(\p{N}{1,2}+)", "a12345"), (P{"a", "12345"}));  // in Ruby's syntax not possessive
  EXPECT_EQ(pieces(R"(a{,2}b)", "aaab"), (P{"a", "aab"}));
  EXPECT_EQ(pieces(R"(\v)", "a\n\vb"), (P{"a\n", "\v", "b"}));
  EXPECT_EQ(pieces(R"(\s)", "a\u180Eb"), (P{"a\u180E"
                                            "b"}));  // was a space in Unicode 6.2
  EXPECT_EQ(pieces(R"([^\S\n]+)", "a \t\n b"), (P{"a", " \t", "\n", " ", "b"}));
  EXPECT_EQ(pieces(R"(x*)", "axxb"), (P{"a", "xx", "b"}));  // empty matches
  EXPECT_EQ(pieces(R"((?:ab|[^a-z])++)", "ab1c"), (P{"ab1", "c"}));
  EXPECT_EQ(pieces(R"(\u4e00)", "x\u4E00y"), (P{"x", "\u4E00", "y"}));
  EXPECT_EQ(pieces("\u00E9{2}+", "x\u00E9\u00E9\u00E9"), (P{"x", "\u00E9\u00E9", "\u00E9"}));
  EXPECT_EQ(pieces(R"((?i:k|x(?-i:s)))", "\u212AXSXs"), (P{"\u212A", "XS", "Xs"}));
  EXPECT_EQ(pieces(R"([^\P{L}a-z]+)", "aBC1"), (P{"a", "BC", "1"}));
}

TEST(TokenizerPattern, RefusesWhatItDoesNotKnow) {
  for (const char* pattern : {"\\w+",
                              "\\b",
                              "^a",
                              "a$",
                              "[[:alpha:]]",
                              "[a&&b]",
                              "[a[b]]",
                              "(?<n>a)",
                              "(?m:a)",
                              "a**",
                              "*a",
                              "(a",
                              "a)",
                              "[a",
                              "\\",
                              "\\p{L",
                              "\\pL",
                              "\\1",
                              "\\h",
                              "[+-\\p{L}]",
                              "[\\s-z]",
                              "\\p{Cs}",
                              "[^\\P{Any}]",
                              "(?i:strasse)",
                              "(?i:FI)",
                              "(?i:\u00E9)",
                              "(?i:[^k])",
                              "(?i:a(b|\\p{Lu}))",
                              "a{2}?",
                              "a{x}",
                              "\\p{NoSuchProperty}",
                              "\\xFF"}) {
    SCOPED_TRACE(pattern);
    expect_error(ExitCode::bad_data, {"t: pattern"}, [&] { Pattern::regex(pattern, "t"); });
  }
}

TEST(TokenizerPattern, RunawaySearchEnds) {
  expect_error(ExitCode::bad_data, {"limit"}, [&] { pieces("(?:a+)+b|(?:a|aa)+c", std::string(5000, 'a') + "d"); });
  EXPECT_EQ(pieces("(?:a|b)+", std::string(300'000, 'a')).size(), 1u);  // deep, but done: beyond the machine stack
}

TEST(TokenizerPattern, CutsAreWherePiecesEnd) {
  EXPECT_EQ(next_cut("ab\ncd", 0), 3u);
  EXPECT_EQ(next_cut("ab\n\ncd \nx ab\n1", 0), 14u);
  EXPECT_EQ(next_cut("a\nb\nc", 3), 4u);
  EXPECT_EQ(next_cut("\nb", 0), 2u);
  EXPECT_EQ(next_cut("\xC3\xA9\nb", 0), 4u);
  EXPECT_EQ(next_cut("", 0), 0u);
}

}  // namespace
}  // namespace sestina
