// Documents that are encoded in parts have the ids of the whole, for every kind of tokenizer that is read; and they are
// encoded in parts where that is proven.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/tokenizer/bpe_model.hpp"
#include "io/tokenizer/tokenizer.hpp"

namespace sestina {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

const char* const kWordPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json byte_level(bool prefix, bool regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", true}, {"use_regex", regex}};
}

json split(const std::string& pattern, const std::string& behavior = "Isolated") {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}, {"invert", false}};
}

json sequence(std::initializer_list<json> parts) { return {{"type", "Sequence"}, {"pretokenizers", json(parts)}}; }

// A byte-level tokenizer whose merges join letters, spaces and line feeds across every place where a cut may fall.
json tokenizer_json(const json& pre_tokenizer, const json& added = json::array(), bool nfc = false) {
  json vocab = json::object(), merges = json::array();
  int next = 0;
  for (int byte = 0; byte < 256; ++byte) vocab[bytes_to_symbols(std::string(1, static_cast<char>(byte)))] = next++;
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{{"\n", "n"},
                                                                                    {"e", "\n"},
                                                                                    {" ", "n"},
                                                                                    {"n", "e"},
                                                                                    {".", "\n"},
                                                                                    {"o", "n"},
                                                                                    {"on", "e"},
                                                                                    {" ", "one"},
                                                                                    {"\n", "\n"},
                                                                                    {"1", "2"}}) {
    const std::string a = bytes_to_symbols(left), b = bytes_to_symbols(right);
    merges.push_back(json::array({a, b}));
    if (!vocab.contains(a + b)) vocab[a + b] = next++;
  }
  json tokens = json::array();
  for (json token : added) {
    token["id"] = next++;
    token["special"] = true;
    tokens.push_back(token);
  }
  return {{"added_tokens", tokens},
          {"normalizer", nfc ? json{{"type", "NFC"}} : json(nullptr)},
          {"pre_tokenizer", pre_tokenizer},
          {"decoder", nullptr},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

Tokenizer tokenizer(const json& file) { return Tokenizer::parse(file.dump(), "t.json"); }

Ids in_parts(const Tokenizer& t, const std::string& text, std::size_t part, int* parts = nullptr) {
  Ids ids;
  Tokenizer::EncodeSizes sizes;
  sizes.part = part;
  sizes.batch = 5 * part;
  int ends = 0;
  const auto sink = [&](const Ids& some, bool last) {
    ids.insert(ids.end(), some.begin(), some.end());
    ends += last ? 1 : 0;
    if (parts != nullptr) ++*parts;
  };
  t.encode(std::vector<std::string_view>{text}, 2, sink, sizes);
  EXPECT_EQ(ends, 1);
  return ids;
}

struct CutCase {
  std::string name;
  json file;
  bool cut;  // plain lines are encoded in parts
};

std::vector<CutCase> cut_cases() {
  const json line = {{{"content", "<a>\nb"}}, {{"content", "</s>\n"}}, {{"content", "e\nn"}, {"normalized", true}}};
  const json strip = {{{"content", "<l>"}, {"lstrip", true}},
                      {{"content", "<r>"}, {"rstrip", true}},
                      {{"content", "and"}, {"single_word", true}},
                      {{"content", "next"}, {"lstrip", true}, {"rstrip", true}}};
  json late = strip;
  for (json& token : late) token["normalized"] = true;
  const json plain = {{{"content", "<|end|>"}}, {{"content", "cafe\u0301"}, {"normalized", true}}};
  const json gpt2 = byte_level(false, true), prefix = byte_level(true, true), last = byte_level(false, false);
  const std::string thirds = R"(\p{N}{1,3})";
  return {{"gpt2", tokenizer_json(gpt2, plain), true},
          {"prefix", tokenizer_json(prefix, plain), true},
          {"prefix, tokens with line feeds", tokenizer_json(prefix, line), true},
          {"prefix, tokens that strip", tokenizer_json(prefix, strip), true},
          {"NFC", tokenizer_json(gpt2, plain, true), true},
          {"NFC, raw tokens that strip", tokenizer_json(prefix, strip, true), true},
          {"NFC, normalized tokens that strip", tokenizer_json(prefix, late, true), false},
          {"NFC, a normalized token with a line feed", tokenizer_json(gpt2, line, true), false},
          {"a known pattern of a Split", tokenizer_json(sequence({split(kWordPattern), last}), strip), true},
          {"digits first", tokenizer_json(sequence({split(thirds), split(kWordPattern), last}), plain), true},
          {"Digits", tokenizer_json(sequence({{{"type", "Digits"}, {"individual_digits", true}}, gpt2})), true},
          {"a prefix after digits", tokenizer_json(sequence({split(thirds), prefix})), false},
          {"two patterns", tokenizer_json(sequence({split(kWordPattern), prefix}), strip), true},
          {"no pattern", tokenizer_json(last), false},
          {"digits alone", tokenizer_json(sequence({split(thirds), last})), false},
          {"lines", tokenizer_json(sequence({split(R"([^\n]*\n?)"), last})), false},
          {"over lines", tokenizer_json(sequence({split(R"([a-z]+\n[a-z]+)"), last}), plain), false},
          {"after lines", tokenizer_json(sequence({split(R"((?<=\n)one|e\n)", "Removed"), last})), false}};
}

std::string random_lines(std::uint32_t seed, int words) {
  static const char* kWords[] = {"one",    "next",       " one",       "e\nnext",   ".\none",      "\n",
                                 "\n\n",   " \n",        "12",         "3\none",    "\r\n",        "  ",
                                 "<a>\nb", "</s>\n",     "<l>",        " <r>\n",    "<r>\none",    "<|end|>",
                                 "caf",    "e\u0301\ne", "cafe\u0301", "\u00E9\nx", "\u4F60\none", "!\nX",
                                 "'s\nt",  "\t",         "\xFF\none",  "and",       "\nand ",      "x"};
  std::string text;
  for (int i = 0; i < words; ++i) {
    seed = seed * 1664525u + 1013904223u;
    text += kWords[(seed >> 16) % std::size(kWords)];
  }
  return text;
}

TEST(TokenizerCuts, PartsHaveTheIdsOfTheWhole) {
  for (const CutCase& c : cut_cases()) {
    SCOPED_TRACE(c.name);
    const Tokenizer t = tokenizer(c.file);
    for (std::uint32_t seed = 0; seed < 60; ++seed) {
      const std::string text = random_lines(seed, 40);
      const Ids whole = t.encode(text);
      for (const std::size_t part : {1u, 2u, 7u, 30u})
        ASSERT_EQ(in_parts(t, text, part), whole) << part << ": " << text;
    }
  }
}

TEST(TokenizerCuts, DocumentsAreCutWhereThatIsProven) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "one and the next one.\n" + std::string(i % 7, ' ') + "and so on\n";
  for (const CutCase& c : cut_cases()) {
    int parts = 0;
    in_parts(tokenizer(c.file), text, 100, &parts);
    EXPECT_EQ(parts > 1, c.cut) << c.name;
  }
}

// Around the size from which documents are cut by default; before, every one of these lost or gained ids there.
TEST(TokenizerCuts, DefaultSizes) {
  for (const CutCase& c : cut_cases()) {
    const Tokenizer t = tokenizer(c.file);
    std::string text;
    while (text.size() < (1U << 18) - 100) text += "one and the\nnext one <l>\nand</s>\nnext\n";
    for (int i = 0; i < 3; ++i, text += text.substr(0, 131'073)) {
      EXPECT_EQ(t.encode(std::vector<std::string_view>{text}, 2)[0], t.encode(text)) << c.name;
    }
  }
}

}  // namespace
}  // namespace sestina
