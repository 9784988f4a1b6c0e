// Text as it comes: whole characters, and nothing that may begin a stop string.
#include "app/verbs/sampling.hpp"

#include <gtest/gtest.h>

namespace sestina {
namespace {

struct Shown {
  std::vector<std::string> pieces;
  bool stopped;
  std::string all() const {
    std::string text;
    for (const auto& piece : pieces) text += piece;
    return text;
  }
};

// One byte after the other.
Shown stream(const std::string& bytes, const std::vector<std::string>& stops) {
  const Codec codec;
  TextStream text(codec, stops);
  Shown shown{};
  for (const std::int32_t id : codec.encode(bytes)) {
    shown.pieces.push_back(text.push(id));
    if (text.stopped()) break;
  }
  shown.pieces.push_back(text.finish());
  shown.stopped = text.stopped();
  return shown;
}

TEST(TextStream, PassesTextOn) {
  const Shown shown = stream("abc", {});
  EXPECT_EQ(shown.pieces, (std::vector<std::string>{"a", "b", "c", ""}));
  EXPECT_FALSE(shown.stopped);
}

TEST(TextStream, EndsAheadOfAStopString) {
  const Shown shown = stream("one. two\n\nthree", {"\n\n", "xyz"});
  EXPECT_EQ(shown.all(), "one. two");
  EXPECT_TRUE(shown.stopped);
}

TEST(TextStream, HoldsBackWhatMayBecomeOne) {
  const Shown shown = stream("a END EN", {" END!", "D E"});
  EXPECT_EQ(shown.all(), "a EN");  // "D E" comes first
  EXPECT_TRUE(shown.stopped);
  const Shown rest = stream("aab aa", {"aaa", "aab!"});
  EXPECT_EQ(rest.pieces.front(), "");
  EXPECT_EQ(rest.all(), "aab aa");  // held back to the end, then shown
  EXPECT_FALSE(rest.stopped);
}

TEST(TextStream, TakesTheFirstOfSeveral) {
  EXPECT_EQ(stream("xaby", {"by", "ab"}).all(), "x");
  EXPECT_EQ(stream("xaby", {"aby", "b"}).all(), "xa");
}

// Characters of up to four bytes, each byte a token.
TEST(TextStream, WaitsForWholeCharacters) {
  Codec codec;
  codec.tokenizer = std::make_unique<Tokenizer>(
      Tokenizer::parse(train_tokenizer({"aaaa"}, {.vocab_size = 257, .threads = 1}), "test tokenizer"));
  const std::string text = "z\xc3\xa4\xe2\x82\xac\xf0\x9f\x8c\x8d!";
  const std::vector<std::int32_t> ids = codec.encode(text);
  ASSERT_EQ(ids.size(), text.size());
  TextStream shown(codec, {"\xf0\x9f\x8c\x8e"});
  std::vector<std::string> pieces;
  for (const std::int32_t id : ids)
    if (const std::string piece = shown.push(id); !piece.empty()) pieces.push_back(piece);
  EXPECT_EQ(pieces, (std::vector<std::string>{"z", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x8c\x8d", "!"}));
  EXPECT_EQ(shown.finish(), "");
}

// Bytes that are part of no character do not take the next one along. Expected: Python's
// b"...".decode("utf-8", errors="replace"), piece by piece those of its incremental decoder.
TEST(TextStream, ReplacesStrayBytesAlone) {
  const std::string r = "\uFFFD", smile = "\U0001F601";
  const std::pair<std::string, std::string> cases[] = {{"A\x80\xf0\x9f\x98\x81"
                                                        "B",
                                                        "A" + r + smile + "B"},
                                                       {"\xff\xfe\xc0\xf0\x9f\x98\x81", r + r + r + smile},
                                                       {"\xf0\x9f\x98\xf0\x9f\x98\x81", r + smile},
                                                       {"\xe2\x82"
                                                        "A\xe2",
                                                        r + "A" + r},
                                                       {"\xed\xa0\x80\xc3\xa4", r + r + r + "\xc3\xa4"},
                                                       {"\xf4\x90\x80\x80z", r + r + r + r + "z"},
                                                       {"z\xf0\x9f\x98", "z" + r}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(stream(bytes, {}).all(), text);
  EXPECT_EQ(stream(cases[0].first, {}).pieces, (std::vector<std::string>{"A", r, "", "", "", smile, "B", ""}));
  EXPECT_EQ(stream(cases[0].first, {smile}).all(), "A" + r);
  EXPECT_EQ(Codec{}.decode(Codec{}.encode(cases[0].first)), cases[0].second);
}

// A vocabulary is often padded to a multiple of some number: the rest stands for no token.
TEST(Codec, KnowsTheIdsThatStandForNothing) {
  Codec codec;
  EXPECT_EQ(codec.unknown_ids(258), (std::vector<std::int32_t>{256, 257}));
  codec.tokenizer = std::make_unique<Tokenizer>(Tokenizer::parse(
      R"({"normalizer": null, "added_tokens": [{"id": 2, "content": "</s>", "special": true}],
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},
          "model": {"type": "BPE", "vocab": {"a": 0, "b": 3}, "merges": []}})",
      "t.json"));
  EXPECT_EQ(codec.unknown_ids(6), (std::vector<std::int32_t>{1, 4, 5}));
}

}  // namespace
}  // namespace sestina
