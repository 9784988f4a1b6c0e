// Text as it comes: whole characters, and nothing that may begin a stop string.
#include "app/verbs/text_stream.hpp"

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

}  // namespace
}  // namespace sestina
