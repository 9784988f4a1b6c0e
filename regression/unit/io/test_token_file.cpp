#include "io/tokens/token_file.hpp"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "io/tokens/text_files.hpp"
#include "io/tokens/token_file_forms.hpp"
#include "sestina_test_paths.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

using Format = DataSource::Format;
using test::append;
using test::expect_error;
using test::TemporaryFolder;
using test::write_bytes;

std::vector<std::int32_t> all(const TokenSource& source) {
  std::vector<std::int32_t> tokens(source.size());
  source.read(0, tokens.size(), tokens.data());
  return tokens;
}

std::vector<std::uint64_t> starts(const TokenSource& source, std::uint64_t begin, std::uint64_t end) {
  std::vector<std::uint64_t> out;
  source.document_starts(begin, end, out);
  return out;
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t count, const std::string& tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = count;
  return raw(header) + tokens;
}

// An .idx of u16 tokens with every field under the test's control.
struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t code = 8;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> pointers, documents;
  std::string tail;
  std::string bytes() const {
    std::string out = magic;
    append(out, version);
    append(out, code);
    append(out, std::uint64_t{lengths.size()});
    append(out, std::uint64_t{documents.size()});
    return out + raw(lengths) + raw(pointers) + raw(documents) + tail;
  }
};
const Index good{.lengths = {3, 0, 2}, .pointers = {0, 6, 6}, .documents = {0, 2, 3}, .tail = ""};

std::unique_ptr<TokenSource> open(Format format, const std::string& path, std::int64_t vocab, std::int64_t end = -1) {
  return open_source({format, path, 1}, nullptr, vocab, end);
}

TEST(TokenFile, WritesAndReadsMegatron) {
  for (const std::int64_t vocab : {100, 65499, 65500, 200000}) {
    const TemporaryFolder folder;
    const std::string prefix = folder / "pair";
    const std::vector<std::int32_t> first = {5, 6, 7, 99}, second = {1}, third = {2, 3};
    {
      MegatronWriter writer(prefix, vocab);
      for (const auto* document : {&first, &second, &third}) writer.add_document(document->data(), document->size());
      writer.add_document(nullptr, 0);
      writer.finish();
    }
    EXPECT_EQ(std::filesystem::file_size(prefix + ".bin"), (vocab < 65500 ? 2u : 4u) * 7u);
    EXPECT_EQ(test::read_bytes(prefix + ".idx")[17], vocab < 65500 ? 8 : 4);
    const auto source = open(Format::megatron, prefix, vocab);
    EXPECT_EQ(all(*source), (std::vector<std::int32_t>{5, 6, 7, 99, 1, 2, 3}));
    EXPECT_EQ(starts(*source, 0, 7), (std::vector<std::uint64_t>{0, 4, 5}));
    EXPECT_EQ(starts(*source, 1, 5), (std::vector<std::uint64_t>{4}));
    EXPECT_EQ(starts(*source, 6, 7), (std::vector<std::uint64_t>{}));
    EXPECT_EQ(source->bytes_per_token(), 0);
    write_text_counts(prefix, {.tokens = 7, .bytes = 21}, "");
    EXPECT_EQ(open(Format::megatron, prefix, vocab)->bytes_per_token(), 3);
  }
}

TEST(TokenFile, LeavesNothingBehindAnUnfinishedWriter) {
  const TemporaryFolder folder;
  {
    MegatronWriter writer(folder / "pair", 100);
    const std::int32_t token = 1;
    writer.add_document(&token, 1);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(TokenFile, ReadsEveryMegatronTypeAndEmptyDocuments) {
  const auto check = [](std::uint8_t code, auto zero) {
    const TemporaryFolder folder;
    using T = decltype(zero);
    Index index = good;
    index.code = code;
    index.pointers = {0, 3 * sizeof(T), 3 * sizeof(T)};
    index.documents = {0, 1, 2, 3};  // the second is empty
    write_bytes(folder / "p.idx", index.bytes());
    write_bytes(folder / "p.bin", raw(std::vector<T>{4, 5, 6, 7, 100}));
    const auto source = open(Format::megatron, folder / "p", 101);
    EXPECT_EQ(all(*source), (std::vector<std::int32_t>{4, 5, 6, 7, 100}));
    EXPECT_EQ(starts(*source, 0, 5), (std::vector<std::uint64_t>{0, 3}));
  };
  check(1, std::uint8_t{});
  check(2, std::int8_t{});
  check(3, std::int16_t{});
  check(4, std::int32_t{});
  check(5, std::int64_t{});
  check(8, std::uint16_t{});
}

TEST(TokenFile, RefusesDamagedIndexes) {  // fault 18
  const auto refused = [](const Index& index, const std::string& word) {
    const std::string image = index.bytes();
    expect_error(ExitCode::bad_data, {"x.idx", word}, [&] { parse_megatron_index(image, 10, "x.idx"); });
  };
  const auto changed = [](auto change) {
    Index index = good;
    change(index);
    return index;
  };
  const std::string image = good.bytes();
  EXPECT_EQ(parse_megatron_index(image, 10, "x.idx").documents, 2u);
  refused(changed([](Index& i) { i.magic[0] = 'X'; }), "MMIDIDX");
  refused(changed([](Index& i) { i.version = 2; }), "version 2");
  refused(changed([](Index& i) { i.code = 7; }), "type code 7");
  refused(changed([](Index& i) { i.pointers = {6, 0, 6}; }), "sequence 0 begins at byte 6");
  refused(changed([](Index& i) { i.pointers = {0, 8, 6}; }), "sequence 1 begins at byte 8");
  refused(changed([](Index& i) { i.pointers = {0, -6, 6}; }), "byte -6");
  refused(changed([](Index& i) { i.lengths = {3, -1, 3}; }), "length -1");
  refused(changed([](Index& i) { i.lengths[2] = 2147483647; }), "beyond the .bin of 10 bytes");
}

TEST(TokenFile, RefusesIndexesThatDisagreeWithTheirBin) {
  const std::string image = good.bytes();
  expect_error(ExitCode::bad_data, {"take 10 bytes", "has 12"}, [&] { parse_megatron_index(image, 12, "x.idx"); });
  expect_error(ExitCode::bad_data, {"beyond the .bin of 8"}, [&] { parse_megatron_index(image, 8, "x.idx"); });
  for (const std::size_t cut : {0, 5, 33, 34, 60}) {
    const std::string part = image.substr(0, cut);
    expect_error(ExitCode::bad_data, {"x.idx"}, [&] { parse_megatron_index(part, 10, "x.idx"); });
  }
  const std::string more = image + "xx";
  expect_error(ExitCode::bad_data, {"x.idx", "need"}, [&] { parse_megatron_index(more, 10, "x.idx"); });
}

TEST(TokenFile, RefusesDamagedDocumentEntries) {
  const auto refused = [](std::vector<std::int64_t> documents, const std::string& word) {
    Index index = good;
    index.documents = std::move(documents);
    const std::string image = index.bytes();
    expect_error(ExitCode::bad_data, {"x.idx", word}, [&] { parse_megatron_index(image, 10, "x.idx"); });
  };
  refused({}, "0 document entries");
  refused({0}, "1 document entries");
  refused({1, 3}, "entry 0 is 1");
  refused({0, 2, 1, 3}, "entry 2 is 1");
  refused({0, 4}, "entry 1 is 4");
  refused({0, -1, 3}, "entry 1 is -1");
  refused({0, 2}, "last document entry is 2");
}

TEST(TokenFile, RefusesCountsThatOverflow) {
  for (const std::uint64_t count : {std::uint64_t{1} << 62, ~std::uint64_t{0}, std::uint64_t{0x1555555555555556}}) {
    for (const std::size_t field : {18, 26}) {
      std::string image = good.bytes();
      std::memcpy(image.data() + field, &count, 8);
      expect_error(ExitCode::bad_data, {"do not fit"}, [&] { parse_megatron_index(image, 10, "x.idx"); });
    }
  }
}

TEST(TokenFile, AllowsTextModesOnly) {
  Index index = good;
  index.tail = std::string(3, '\0');
  const std::string text = index.bytes();
  EXPECT_EQ(parse_megatron_index(text, 10, "x.idx").tokens, 5u);
  index.tail[1] = 1;
  const std::string image = index.bytes();
  expect_error(ExitCode::bad_data, {"multimodal"}, [&] { parse_megatron_index(image, 10, "x.idx"); });
}

TEST(TokenFile, RefusesIdsBeyondTheVocabulary) {  // fault 17: at the start, with file and position
  const TemporaryFolder folder;
  std::vector<std::uint16_t> tokens(9'000'001, 7);
  tokens[8'999'999] = 50;
  write_bytes(folder / "t.bin", llmc(20240520, 1, 9'000'001, raw(tokens)));
  EXPECT_EQ(open(Format::llmc, folder / "t.bin", 51)->size(), 9'000'001u);
  expect_error(ExitCode::bad_data, {"t.bin", "token 8999999", "id 50", "0 to 49"},
               [&] { open(Format::llmc, folder / "t.bin", 50); });
  write_bytes(folder / "n.npy", "\x93NUMPY\x01" + std::string(1, '\0') + std::string("\x3a", 1) + std::string(1, '\0') +
                                    "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }\n" +
                                    raw(std::vector<std::int32_t>{3, -1}));
  expect_error(ExitCode::bad_data, {"n.npy", "token 1", "id -1"}, [&] { open(Format::npy, folder / "n.npy", 50); });
}

TEST(TokenFile, ReadsBothLlmcVersions) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.bin", llmc(20240520, 1, 5, raw(std::vector<std::uint16_t>{1, 0, 3, 0, 5})));
  write_bytes(folder / "b.bin", llmc(20240801, 7, 2, raw(std::vector<std::uint32_t>{70000, 9})));
  const auto gpt2 = open(Format::llmc, folder / "a.bin", 10);
  EXPECT_EQ(all(*gpt2), (std::vector<std::int32_t>{1, 0, 3, 0, 5}));
  EXPECT_EQ(starts(*gpt2, 0, 5), (std::vector<std::uint64_t>{0}));
  const auto cut = open(Format::llmc, folder / "a.bin", 10, 0);
  EXPECT_EQ(starts(*cut, 0, 5), (std::vector<std::uint64_t>{0, 2, 4}));
  EXPECT_EQ(starts(*cut, 1, 4), (std::vector<std::uint64_t>{2}));
  EXPECT_EQ(all(*open(Format::llmc, folder / "b.bin", 80000)), (std::vector<std::int32_t>{70000, 9}));
}

TEST(TokenFile, JoinsFilesOfAFolderOrPattern) {
  const TemporaryFolder folder;
  write_bytes(folder / "part_1.bin", llmc(20240520, 1, 2, raw(std::vector<std::uint16_t>{1, 2})));
  write_bytes(folder / "part_2.bin", llmc(20240520, 1, 3, raw(std::vector<std::uint16_t>{3, 0, 5})));
  for (const std::string& path : {folder.path(), folder / "part_*.bin"}) {
    const auto source = open(Format::llmc, path, 10, 0);
    EXPECT_EQ(all(*source), (std::vector<std::int32_t>{1, 2, 3, 0, 5}));
    EXPECT_EQ(starts(*source, 0, 5), (std::vector<std::uint64_t>{0, 2, 4}));
    std::int32_t middle[3];
    source->read(1, 3, middle);
    EXPECT_EQ(middle[0], 2);
    EXPECT_EQ(middle[2], 0);
  }
  expect_error(ExitCode::input_missing, {"none_*.bin"}, [&] { open(Format::llmc, folder / "none_*.bin", 10); });
}

TEST(TokenFile, RefusesDamagedLlmcFiles) {  // fault 17
  const TemporaryFolder folder;
  const std::string two = raw(std::vector<std::uint16_t>{1, 2}), path = folder / "t.bin";
  const auto refused = [&](const std::string& bytes, const std::string& word, std::int64_t vocab = 10) {
    write_bytes(path, bytes);
    expect_error(ExitCode::bad_data, {"t.bin", word}, [&] { open(Format::llmc, path, vocab); });
  };
  refused(llmc(20240521, 1, 2, two), "magic number 20240521");
  refused(llmc(20240522, 1, 2, two), "evaluation");
  refused(llmc(20240520, 2, 2, two), "version 2");
  refused(llmc(20240801, 1, 1, two), "version 1");
  refused(llmc(20240520, 1, 3, two), "need 1030");
  refused(llmc(20240520, 1, 1, two), "need 1026");
  refused(llmc(20240520, 1, 0, ""), "0 tokens");
  refused(llmc(20240520, 1, -5, ""), "-5 tokens");
  refused("short", "header");
  refused("", "header");
  expect_error(ExitCode::input_missing, {"nowhere.bin"}, [&] { open(Format::llmc, folder / "nowhere.bin", 10); });
}

std::string numpy(const std::string& type, const std::string& shape, const std::string& data, int version = 1) {
  const std::string header = "{'descr': " + type + ", 'fortran_order': False, 'shape': " + shape + ", }\n";
  std::string out = "\x93NUMPY";
  out += static_cast<char>(version);
  out += '\0';
  if (version == 1)
    append(out, static_cast<std::uint16_t>(header.size()));
  else
    append(out, static_cast<std::uint32_t>(header.size()));
  return out + header + data;
}

TEST(TokenFile, ReadsNpyRawAndWithHeader) {
  const TemporaryFolder folder;
  const std::vector<std::int32_t> expected = {1, 2, 3};
  write_bytes(folder / "a.npy", raw(std::vector<std::uint16_t>{1, 2, 3}));
  EXPECT_EQ(all(*open(Format::npy, folder / "a.npy", 10)), expected);
  write_bytes(folder / "a.npy", raw(std::vector<std::uint32_t>{1, 2, 3}));
  EXPECT_EQ(all(*open(Format::npy, folder / "a.npy", 100000)), expected);
  write_bytes(folder / "a.npy", numpy("'<u2'", "(3,)", raw(std::vector<std::uint16_t>{1, 2, 3})));
  EXPECT_EQ(all(*open(Format::npy, folder / "a.npy", 10)), expected);
  write_bytes(folder / "a.npy", numpy("'<u4'", "(3,)", raw(std::vector<std::uint32_t>{1, 2, 3}), 2));
  EXPECT_EQ(all(*open(Format::npy, folder / "a.npy", 10)), expected);
  write_bytes(folder / "a.npy", numpy("'<i4'", "(3,)", raw(expected), 3));
  EXPECT_EQ(all(*open(Format::npy, folder / "a.npy", 10)), expected);
}

TEST(TokenFile, ReadsNarrowIdsBelowALargerVocabularyAndWideOnesBelowASmallerOne) {
  constexpr std::int64_t large = 151936;
  const TemporaryFolder folder;
  const std::vector<std::int32_t> expected = {1, 2, 3, 65535, 5, 6, 7, 8}, small = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<std::uint16_t> narrow(expected.begin(), expected.end());
  const std::vector<std::int64_t> widest(expected.begin(), expected.end());
  write_bytes(folder / "a.bin", llmc(20240520, 1, 8, raw(narrow)));
  EXPECT_EQ(all(*open(Format::llmc, folder / "a.bin", large)), expected);
  write_bytes(folder / "a.npy", raw(narrow));
  EXPECT_EQ(all(*open(Format::npy, folder / "a.npy", large)), expected);
  write_bytes(folder / "a.npy", numpy("'<u2'", "(8,)", raw(narrow)));
  EXPECT_EQ(all(*open(Format::npy, folder / "a.npy", large)), expected);
  for (const char* type : {"'<i8'", "'<u8'"}) {
    write_bytes(folder / "a.npy", numpy(type, "(8,)", raw(widest)));
    EXPECT_EQ(all(*open(Format::npy, folder / "a.npy", large)), expected);
    expect_error(ExitCode::bad_data, {"a.npy", "token 3 has id 65535", "0 to 65534"},
                 [&] { open(Format::npy, folder / "a.npy", 65535); });
  }
  write_bytes(folder / "a.npy", raw(small));
  EXPECT_EQ(all(*open(Format::npy, folder / "a.npy", 10)), small);
  Index index = good;
  index.lengths = {3, 0, 5};
  index.documents = {0, 1, 3};
  write_bytes(folder / "p.idx", index.bytes());
  write_bytes(folder / "p.bin", raw(narrow));
  EXPECT_EQ(all(*open(Format::megatron, folder / "p", large)), expected);
  index.code = 3;  // i16: 65535 is -1
  write_bytes(folder / "p.idx", index.bytes());
  expect_error(ExitCode::bad_data, {"p.bin", "token 3 has id -1"},
               [&] { open(Format::megatron, folder / "p", large); });
}

TEST(TokenFile, RefusesDamagedNpyFiles) {  // fault 17
  const TemporaryFolder folder;
  const std::string path = folder / "t.npy";
  const auto refused = [&](const std::string& bytes, const std::string& word, std::int64_t vocab = 10) {
    write_bytes(path, bytes);
    expect_error(ExitCode::bad_data, {"t.npy", word}, [&] { open(Format::npy, path, vocab); });
  };
  const std::string six(6, '\1');
  refused("", "no tokens");
  refused("abc", "multiple of 2");
  refused(raw(std::vector<std::uint32_t>{1, 2, 3, 10}), "token 3 has id 10");
  refused(numpy("'<f4'", "(1,)", "abcd"), "'<f4'");
  refused(numpy("'>u2'", "(3,)", six), "'>u2'");
  refused(numpy("'<u2'", "(3, 1)", six), "(3,1)");
  refused(numpy("'<u2'", "()", six), "()");
  refused(numpy("'<u2'", "(4,)", six), "needs 8");
  refused(numpy("'<u2'", "(99999999999999999999,)", six), "shape");
  refused(numpy("'<u2'", "(9999999999999999999,)", six), "shape");
  refused("\x93NUMPY\x01", "truncated");
  refused(numpy("'<u2'", "(3,)", six).substr(0, 30), "truncated");
}

TEST(TokenFile, ReadsTextAsBytes) {
  const TemporaryFolder folder;
  write_bytes(folder / "b.txt", "xyz");
  write_bytes(folder / "a.txt", "\xc3\xa9!");
  write_bytes(folder / "deep/c.txt", "end");
  write_bytes(folder / "empty.txt", "");
  write_bytes(folder / "ignored.bin", "no");
  const auto source = open(Format::text, folder.path(), 256);
  EXPECT_EQ(all(*source), (std::vector<std::int32_t>{0xc3, 0xa9, '!', 'x', 'y', 'z', 'e', 'n', 'd'}));
  EXPECT_EQ(starts(*source, 0, 9), (std::vector<std::uint64_t>{0, 3, 6}));
  EXPECT_EQ(source->bytes_per_token(), 1);
  expect_error(ExitCode::bad_data, {"a.txt", "token 0", "id 195", "0 to 127"},
               [&] { open(Format::text, folder.path(), 128); });
  expect_error(ExitCode::bad_data, {"empty.txt", "no text"}, [&] { open(Format::text, folder / "empty.txt", 256); });
  expect_error(ExitCode::input_missing, {"none.txt"}, [&] { open(Format::text, folder / "none.txt", 256); });
  std::filesystem::create_directories(folder / "hollow");
  expect_error(ExitCode::input_missing, {"hollow"}, [&] { open(Format::text, folder / "hollow", 256); });
}

TEST(TextFiles, UnpacksGzip) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 200000; ++i) text += "line " + std::to_string(i % 977) + (i % 31 == 0 ? "\n\n" : "\n");
  const std::string path = folder / "t.rst.gz";
  for (const std::string& part : {text, std::string("second member\n")}) {
    gzFile file = gzopen(path.c_str(), "ab");
    gzwrite(file, part.data(), static_cast<unsigned>(part.size()));
    gzclose(file);
  }
  EXPECT_EQ(TextFile(path).view(), text + "second member\n");
  const std::string packed = test::read_bytes(path);
  write_bytes(path, packed.substr(0, packed.size() - 5));
  expect_error(ExitCode::bad_data, {"t.rst.gz", "gzip"}, [&] { TextFile{path}; });
  std::string bent = packed;
  bent[bent.size() / 2] ^= 0x55;
  write_bytes(path, bent);
  expect_error(ExitCode::bad_data, {"t.rst.gz", "gzip"}, [&] { TextFile{path}; });
  write_bytes(path, std::string(10'000'000, 'a'));  // not gzip, whatever its name
  EXPECT_EQ(TextFile(path).view().size(), 10'000'000u);
}

TEST(TextFiles, ListsByPatternInOrder) {
  const TemporaryFolder folder;
  for (const char* name : {"z.rst.gz", "a/b.rst", "a/c.html", "y.txt"}) write_bytes(folder / name, "text");
  EXPECT_EQ(list_text_files({folder.path()}, {"*.rst*"}),
            (std::vector<std::string>{folder / "a/b.rst", folder / "z.rst.gz"}));
  EXPECT_EQ(list_text_files({folder.path()}, {}).size(), 3u);
  EXPECT_EQ(list_text_files({folder / "a/c.html", folder / "a"}, {"b*"}),
            (std::vector<std::string>{folder / "a/c.html", folder / "a/b.rst"}));
}

TEST(TextFiles, SplitsAtSeparatorLines) {
  using Views = std::vector<std::string_view>;
  EXPECT_EQ(split_documents("one\ntwo\n", ""), (Views{"one\ntwo\n"}));
  EXPECT_EQ(split_documents("one\n---\ntwo\n---\n---\n --- \n", "---"), (Views{"one\n", "two\n", " --- \n"}));
  EXPECT_EQ(split_documents("---\nx\n---", "---"), (Views{"x\n"}));
  EXPECT_TRUE(split_documents("", "---").empty());
}

TEST(TextFiles, TokenizesLongDocumentsAsBytesInOrder) {
  std::string text;
  while (text.size() < 1'000'000) text += "some words in a line\nAnother line\n\n  indented\n";
  std::vector<std::vector<std::int32_t>> got;
  tokenize_documents({text, "", "ab"}, nullptr, 7, 2,
                     [&](const std::vector<std::int32_t>& tokens) { got.push_back(tokens); });
  ASSERT_EQ(got.size(), 3u);
  EXPECT_TRUE(std::equal(got[0].begin(), got[0].end(), text.begin(), text.end()));
  EXPECT_TRUE(got[1].empty());
  EXPECT_EQ(got[2], (std::vector<std::int32_t>{'a', 'b'}));
}

TEST(TokenFile, MegatronAndLlmcFormsOfTheGoldenStreamAgree) {
  const std::string models = std::string(SESTINA_SOURCE_DIR) + "/regression/golden/models";
  if (!std::filesystem::is_directory(models)) GTEST_SKIP() << "no golden models in this tree";
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    const std::string model = entry.path().string();
    if (!std::filesystem::exists(model + "/tokens.idx")) continue;  // mixtures have their tokens in one form
    const auto pair = open(Format::megatron, model + "/tokens", 211),
               stream = open(Format::llmc, model + "/tokens_llmc.bin", 211, 0);
    EXPECT_EQ(all(*pair), all(*stream)) << model;
    const auto documents = starts(*pair, 0, pair->size()), cuts = starts(*stream, 0, stream->size());
    EXPECT_GT(documents.size(), 10u);  // token 0 ends each, and a few lie inside documents too
    EXPECT_TRUE(std::includes(cuts.begin(), cuts.end(), documents.begin(), documents.end())) << model;
  }
}

}  // namespace
}  // namespace sestina
