// What is no text is refused by what its bytes are, whatever the file is called; packed text is read as its makers
// write it.
#include "io/tokens/token_file.hpp"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "core/deck/options.hpp"
#include "io/tokens/text_files.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

using namespace std::string_literals;
using Format = DataSource::Format;
using test::expect_error;
using test::TemporaryFolder;
using test::write_bytes;

constexpr std::string_view lfs(
    "version https://git-lfs.github.com/spec/v1\noid "
    "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n");

std::string gzip_member(const std::string& text) {
  std::string packed(text.size() + 100, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstd_frame(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
  return packed;
}

// A frame of one raw block, without its length in the header, for a window of 2^log bytes.
std::string wide_frame(const std::string& text, int log) {
  std::string frame = "\x28\xb5\x2f\xfd\0"s;
  frame += static_cast<char>((log - 10) << 3);
  const auto block = static_cast<std::uint32_t>(1 | text.size() << 3);
  return frame.append(reinterpret_cast<const char*>(&block), 3) + text;
}

std::string skippable(const std::string& content) {
  std::string frame = "\x5e\x2a\x4d\x18";
  test::append(frame, static_cast<std::uint32_t>(content.size()));
  return frame + content;
}

std::string tar() {
  std::string bytes(1024, '\0');
  return bytes.replace(0, 5, "a.txt").replace(257, 6, "ustar\0"s);
}

struct Sample {
  std::string bytes, word;
};

const std::vector<Sample> foreign = {
    {"\xFD\x37zXZ\0\0\4"s, "xz data"},
    {"BZh91AY&SY\x10\x20", "bzip2 data"},
    {"\x04\x22\x4D\x18\x64\x40\xA7\1"s, "lz4 data"},
    {"PK\3\4\x14\0\0\0"s, "zip archive"},
    {tar(), "tar archive"},
    {"PAR1" + std::string(40, '\x15') + "PAR1", "Parquet"},
    {"ARROW1\0\0\xFF\xFF"s, "Arrow"},
    {"\x89HDF\r\n\x1A\n\0\0"s, "HDF5"},
    {"\x28\xB5\x2F\xFD\x04\x58"s, "zstd data"},
    {gzip_member("inner"), "gzip data"},
    {std::string(lfs), "Git LFS pointer"},
};

void expect_no_text(const std::string& path, const std::string& word) {
  const std::string name = path.substr(path.rfind('/') + 1);
  expect_error(ExitCode::input_missing, {name, word}, [&] { read_documents({path}, {}, [](auto&&...) {}); });
  expect_error(ExitCode::input_missing, {name, word}, [&] { open_source({Format::text, path, 1}, nullptr, 256); });
}

TEST(FileKind, RefusesForeignFilesByTheirBytes) {
  const TemporaryFolder folder;
  for (const Sample& sample : foreign) {
    write_bytes(folder / "packed.txt.gz", gzip_member(sample.bytes));  // a tar archive in gzip, for instance
    expect_no_text(folder / "packed.txt.gz", sample.word);
    if (sample.word == "gzip data" || sample.word == "zstd data") continue;
    for (const char* name : {"a.txt", "a.jsonl", "a"}) {
      write_bytes(folder / name, sample.bytes);
      expect_no_text(folder / name, sample.word);
    }
    write_bytes(folder / "t.bin", sample.bytes);
    write_bytes(folder / "t.idx", sample.bytes);
    for (const Format format : {Format::llmc, Format::npy})
      expect_error(ExitCode::input_missing, {"t.bin", sample.word}, [&] {
        open_source({format, folder / "t.bin", 1}, nullptr, 0);
      });
    expect_error(ExitCode::input_missing, {"t.idx", sample.word}, [&] {
      open_source({Format::megatron, folder / "t", 1}, nullptr, 0);
    });
  }
  write_bytes(folder / "n.txt", "\x93NUMPY\x01\0v\0"s);
  expect_no_text(folder / "n.txt", "NumPy");
}

TEST(FileKind, RefusesWhatIsNoUtf8) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.txt", line = "plain words\n";
  const std::vector<Sample> samples = {
      {"\xFF\xFEh\0i\0"s, "UTF-16"},       {"\xFE\xFF\0h\0i"s, "UTF-16"},        {"\xFF\xFE\0\0h\0\0\0"s, "UTF-32"},
      {"\0\0\xFE\xFF\0\0\0h"s, "UTF-32"},  {"h\0i\0"s, "byte 1 is zero"},        {"caf\xE9", "0xE9 at byte 3"},
      {"\xC3\xA9t\xC3", "0xC3 at byte 3"}, {"a\xED\xA0\x80z", "0xED at byte 1"},  // half of a pair of UTF-16
      {"\xC0\x80", "0xC0 at byte 0"},
  };
  for (const Sample& sample : samples) {
    write_bytes(path, sample.bytes);
    expect_no_text(path, sample.word);
  }
  std::string text;
  while (text.size() < (std::size_t{9} << 20)) text += "\xE2\x82\xAC";  // no block of it ends where a character does
  write_bytes(path, text);
  EXPECT_EQ(open_source({Format::text, path, 1}, nullptr, 256)->size(), text.size());
  write_bytes(path, text + "\x80");
  expect_no_text(path, "0x80 at byte " + std::to_string(text.size()));
  std::string latin;
  for (int i = 0; i < 50; ++i) latin += "{\"text\": \"caf\xE9\"}\n";
  write_bytes(folder / "l.jsonl", latin);
  expect_error(ExitCode::input_missing, {"l.jsonl", "50 not UTF-8"}, [&] {
    open_source({Format::jsonl, folder / "l.jsonl", 1}, nullptr, 256);
  });
}

TEST(FileKind, TakesWhatLooksLikeAnArchiveForTokensOnlyWhereItIsOne) {
  const TemporaryFolder folder;
  const auto tokens = [&](const std::string& bytes) {
    write_bytes(folder / "a.npy", bytes);
    return open_source({Format::npy, folder / "a.npy", 1}, nullptr, 65536)->size();
  };
  EXPECT_EQ(tokens("\x1F\x8B\x01\x02"), 2u);             // not the method of gzip
  EXPECT_EQ(tokens("\xFF\xFE\x01\x02"), 2u);             // a mark, in text alone
  EXPECT_EQ(tokens("PAR1" + std::string(8, '\1')), 6u);  // Parquet ends with its name too
  write_bytes(folder / "a.txt", "PAR1 is how a Parquet file begins. BZh and PK are words.\n");
  EXPECT_GT(open_source({Format::text, folder / "a.txt", 1}, nullptr, 256)->size(), 0u);
  write_bytes(folder / "a.txt", std::string(lfs) + std::string(1000, 'x'));  // longer than a pointer may be
  EXPECT_GT(open_source({Format::text, folder / "a.txt", 1}, nullptr, 256)->size(), 0u);
}

TEST(FileKind, DropsTheMarkOfUtf8) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt", "\xEF\xBB\xBFwords");
  EXPECT_EQ(TextFile(folder / "a.txt").view(), "words");
  const auto source = open_source({Format::text, folder / "a.txt", 1}, nullptr, 256);
  ASSERT_EQ(source->size(), 5u);
  std::int32_t first = 0;
  source->read(0, 1, &first);
  EXPECT_EQ(first, 'w');
  write_bytes(folder / "a.jsonl", "\xEF\xBB\xBF{\"text\": \"one\"}\r\n \r\n{\"text\": \"two\"}\r\n");
  const DocumentFile lines(folder / "a.jsonl", {});
  EXPECT_EQ(lines.documents(), (std::vector<std::string_view>{"one", "two"}));
  EXPECT_EQ(lines.counts().skipped(), 0u);
}

TEST(FileKind, ReadsZstdOfEveryWriter) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.txt.zst", text(131072, 'x');  // as much as one call unpacks
  const auto check = [&](const std::string& packed, const std::string& expected) {
    write_bytes(path, packed);
    EXPECT_EQ(TextFile(path).view(), expected);
  };
  check(zstd_frame(text), text);
  check(zstd_frame(text + text) + zstd_frame("") + zstd_frame("end"), text + text + "end");
  check(skippable("size") + zstd_frame("one ") + skippable("") + zstd_frame("two") + skippable(std::string(2000, 'y')),
        "one two");
  check(skippable(std::string(2000, 'y')) + zstd_frame("one"), "one");
  check(skippable("nothing else"), "");
  check(zstd_frame(""), "");
  check(wide_frame("after a wide window", 31), "after a wide window");
  check(zstd_frame("padded") + std::string(1000, '\0'), "padded");
  for (const std::string& cut :
       {zstd_frame("text").substr(0, 9), skippable("size").substr(0, 9), zstd_frame("a") + "garbage"}) {
    write_bytes(path, cut);
    expect_error(ExitCode::bad_data, {"a.txt.zst", "zstd"}, [&] { TextFile{path}; });
  }
}

TEST(FileKind, ReadsGzipOfEveryWriter) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.txt";  // not called .gz
  const auto check = [&](const std::string& packed, const std::string& expected) {
    write_bytes(path, packed);
    EXPECT_EQ(TextFile(path).view(), expected);
    if (expected.empty()) return;
    EXPECT_EQ(open_source({Format::text, path, 1}, nullptr, 256)->size(), expected.size());
  };
  check(gzip_member("one ") + gzip_member("") + gzip_member("two"), "one two");
  check(gzip_member("one ") + gzip_member("two") + std::string(512, '\0'), "one two");
  check(gzip_member(""), "");
  for (const std::string& cut :
       {gzip_member("text").substr(0, 9), gzip_member("text") + "garbage", gzip_member("text") + "\0\0x"s}) {
    write_bytes(path, cut);
    expect_error(ExitCode::bad_data, {"a.txt", "gzip"}, [&] { TextFile{path}; });
  }
}

TEST(FileKind, KnowsJsonLinesByNameAndByContent) {
  for (const char* name : {"a.jsonl", "a.JSONL", "b.ndjson", "b.NDJSON.gz", "c.json", "c4.00000-of-01024.json.gz",
                           "d.Json.ZST", "/x.y/e.jsonl.zst"})
    EXPECT_TRUE(is_jsonl_name(name)) << name;
  for (const char* name : {"a.txt", "jsonl", "a.jsonl.txt", "a.json5", "a.xz", "", ".gz"})
    EXPECT_FALSE(is_jsonl_name(name)) << name;
  const TemporaryFolder folder;
  const std::string path = folder / "rows.json";
  const auto documents = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    return DocumentFile(path, {}).documents().size();
  };
  EXPECT_EQ(documents("{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n"), 2u);
  EXPECT_EQ(documents("{\"text\": \"a\"}"), 1u);
  EXPECT_EQ(documents("{\"text\": \"cut\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n"), 2u);
  for (const char* array : {"[{\"text\": \"a\"}]", " \n[\n {\"text\": \"a\"}\n]\n", "[]"})
    expect_error(ExitCode::input_missing, {"rows.json", "a JSON array", "jq"}, [&] { documents(array); });
  for (const char* spread : {"{\n  \"text\": \"a\"\n}\n", "\n{ \"text\":\n\"a\" }", "{\n}\n"})
    expect_error(ExitCode::input_missing, {"rows.json", "several lines", "jq"}, [&] { documents(spread); });
}

}  // namespace
}  // namespace sestina
