// JSONL: one document for each line, packed or not; what is invalid is counted, and too much of it is an error.
#include <gtest/gtest.h>
#include <zstd.h>

#include "io/tokens/text_files.hpp"
#include "io/tokens/token_file.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

using test::expect_error;
using test::TemporaryFolder;
using test::write_bytes;

const std::string three =
    "{\"text\": \"one\\n\"}\r\n\n{\"id\": 7, \"text\": \"tw\\u00f6\"}\n{\"text\": \"\"}\n{\"text\":\"3\"}";

std::vector<std::string> documents(const std::string& path, const DocumentRule& rule = {}) {
  std::vector<std::string> texts;
  read_documents({path}, rule, [&](const auto& views, std::size_t) { texts.assign(views.begin(), views.end()); });
  return texts;
}

std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
  return packed;
}

TEST(JsonLines, EveryLineIsADocumentByTheNameOfTheFile) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.jsonl", three);
  write_bytes(folder / "a.jsonl.zst", zstd(three));
  const std::vector<std::string> expected = {"one\n", "tw\u00f6", "3"};
  EXPECT_EQ(documents(folder / "a.jsonl"), expected);
  EXPECT_EQ(documents(folder / "a.jsonl.zst"), expected);
  write_bytes(folder / "a.txt", three);
  EXPECT_EQ(documents(folder / "a.txt"), std::vector<std::string>{three});
}

TEST(JsonLines, UnpacksSeveralZstdFramesAndRefusesACutOne) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt.zst", zstd("first ") + zstd(std::string(1'000'000, 'x')));
  EXPECT_EQ(TextFile(folder / "a.txt.zst").view(), "first " + std::string(1'000'000, 'x'));
  const std::string whole = zstd("some text");
  write_bytes(folder / "cut.txt.zst", whole.substr(0, whole.size() - 3));
  expect_error(ExitCode::bad_data, {"cut.txt.zst", "zstd"}, [&] { TextFile{folder / "cut.txt.zst"}; });
}

TEST(JsonLines, CountsWhatIsInvalidAndHasALimit) {
  const TemporaryFolder folder;
  const std::string path = folder / "bad.jsonl",
                    bad = "{\"text\":\"a\"}\n{\"text\":\"\xff\"}\nno json\n{\"content\":\"b\"}\n{\"text\":5}\n";
  write_bytes(path, bad);
  DocumentRule rule;
  const TextDefects found = read_documents({path}, rule, [](const auto& views, std::size_t) {
    ASSERT_EQ(views.size(), 1u);
    EXPECT_EQ(views[0], "a");
  });
  EXPECT_EQ(found.lines, 5u);
  EXPECT_EQ(found.invalid_utf8, 1u);
  EXPECT_EQ(found.invalid_json, 1u);
  EXPECT_EQ(found.without_text, 2u);
  rule.invalid_limit = 0;
  expect_error(ExitCode::bad_data, {"bad.jsonl", "4 of 5 lines", "1 not UTF-8"}, [&] { documents(path, rule); });
  rule.invalid_limit = 0.01;
  std::string many;
  for (int i = 0; i < 11; ++i) many += "broken\n{\"text\":\"x\"}\n";  // one more than is always allowed
  write_bytes(path, many);
  expect_error(ExitCode::bad_data, {"11 of 22 lines"}, [&] { documents(path, rule); });
  rule.text_key = "content";
  write_bytes(path, "{\"content\":\"b\"}\n");
  EXPECT_EQ(documents(path, rule), std::vector<std::string>{"b"});
}

TEST(JsonLines, IsASourceOfTraining) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.jsonl", three);
  DataSource described;
  described.format = DataSource::Format::jsonl;
  described.path = folder / "a.jsonl";
  const auto source = open_source(described, nullptr, 256);
  std::vector<std::int32_t> tokens(source->size());
  source->read(0, tokens.size(), tokens.data());
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{'o', 'n', 'e', '\n', 't', 'w', 0xc3, 0xb6, '3'}));
  std::vector<std::uint64_t> starts;
  source->document_starts(0, tokens.size(), starts);
  EXPECT_EQ(starts, (std::vector<std::uint64_t>{0, 4, 8}));
  EXPECT_EQ(source->bytes_per_token(), 1);
}

}  // namespace
}  // namespace sestina
