// Text to tokens through a real tokenizer: the cuts for threads change no id, and documents end with their token.
#include <gtest/gtest.h>

#include "io/tokenizer/tokenizer.hpp"
#include "io/tokens/text_files.hpp"
#include "io/tokens/token_file.hpp"
#include "sestina_test_paths.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

const std::string data_folder = std::string(SESTINA_SOURCE_DIR) + "/regression/data";

Tokenizer trained(const std::string& pattern) {
  const std::string text = test::read_bytes(data_folder + "/orchard.txt");
  TokenizerTraining training;
  training.vocab_size = 500;
  training.pattern = pattern;
  return Tokenizer::parse(train_tokenizer({text}, training), "trained");
}

// Longer than several pieces, with line breaks of all kinds around letters, digits, marks and spaces.
std::string long_text() {
  const std::string own = test::read_bytes(data_folder + "/harbour.txt");
  const std::string odd =
      "end\nNext\r\nline \n indented\n\n\npara.\nMark!\n\"quote\n\xcc\x81"
      "combining\n\ttab\n12\n34\nword\n\xc3\xa9t\xc3\xa9\n'S \n\nX";
  std::string text;
  for (std::size_t i = 0; text.size() < 700'000; ++i) text += own.substr(i * 97 % 1000, 20'000) + odd;
  return text;
}

TEST(TextTokens, LongDocumentsGetTheIdsOfTheWhole) {
  const std::string text = long_text();
  for (const char* pattern : {"gpt2", "llama3", "qwen"}) {
    const Tokenizer tokenizer = trained(pattern);
    std::vector<std::int32_t> got;
    tokenize_documents({text}, &tokenizer, -1, 2, [&](const std::vector<std::int32_t>& tokens) { got = tokens; });
    EXPECT_EQ(got, tokenizer.encode(text)) << pattern;
  }
}

// With a prefix space, and added tokens that take white space or are words.
TEST(TextTokens, LongDocumentsKeepTheirPrefixAndAddedTokens) {
  const std::string golden = std::string(SESTINA_SOURCE_DIR) + "/regression/golden/tokenizer/";
  std::string text;
  while (text.size() < 600'000)
    text += long_text().substr(text.size() % 999, 50'000) + "<right>\nword wordy\n<mask>\nl r\nX";
  for (const char* name : {"gpt2_prefix", "qwen"}) {
    const Tokenizer tokenizer = Tokenizer::load(golden + name + ".json");
    std::vector<std::int32_t> got;
    tokenize_documents({text}, &tokenizer, -1, 2, [&](const std::vector<std::int32_t>& tokens) { got = tokens; });
    EXPECT_EQ(got, tokenizer.encode(text)) << name;
  }
}

TEST(TextTokens, TextSourcesEndEachDocument) {
  const test::TemporaryFolder folder;
  test::write_bytes(folder / "a.txt", "Maren counted nine loaves.");
  test::write_bytes(folder / "b.txt", "");
  test::write_bytes(folder / "c.txt", "Ilse lost two kettles.\n");
  const Tokenizer tokenizer = trained("gpt2");
  const auto source = open_source({DataSource::Format::text, folder.path(), 1}, &tokenizer, tokenizer.vocab_size());
  std::vector<std::int32_t> tokens(source->size());
  source->read(0, tokens.size(), tokens.data());
  auto expected = tokenizer.encode("Maren counted nine loaves.");
  expected.push_back(static_cast<std::int32_t>(tokenizer.end_of_document()));
  const std::uint64_t second = expected.size();
  for (const auto id : tokenizer.encode("Ilse lost two kettles.\n")) expected.push_back(id);
  expected.push_back(static_cast<std::int32_t>(tokenizer.end_of_document()));
  EXPECT_EQ(tokens, expected);
  std::vector<std::uint64_t> starts;
  source->document_starts(0, tokens.size(), starts);
  EXPECT_EQ(starts, (std::vector<std::uint64_t>{0, second}));
  EXPECT_DOUBLE_EQ(source->bytes_per_token(), 49.0 / static_cast<double>(tokens.size()));
  test::expect_error(ExitCode::bad_data, {"a.txt", "tokenizer is larger"}, [&] {
    open_source({DataSource::Format::text, folder.path(), 1}, &tokenizer, 256);
  });
}

// A stop must not wait until gigabytes of text are tokenised: before each file and every few megabytes of one there is
// a poll, and what it throws ends the work.
TEST(TextTokens, PollsWhileTextIsTokenised) {
  struct Stopped {};
  const test::TemporaryFolder folder;
  std::string text;
  while (text.size() < (std::size_t{40} << 20)) text += "Maren counted nine loaves.\nIlse lost two kettles.\n";
  test::write_bytes(folder / "a.txt", text);
  const Tokenizer tokenizer = trained("gpt2");
  int polls = 0;
  const DataSource source{DataSource::Format::text, folder / "a.txt", 1};
  EXPECT_THROW(open_source(source, &tokenizer, tokenizer.vocab_size(), -1,
                           [&] {
                             if (++polls == 3) throw Stopped();
                           }),
               Stopped);
  EXPECT_EQ(polls, 3);  // before the file, before its first and before its second 16 MB
}

}  // namespace
}  // namespace sestina
