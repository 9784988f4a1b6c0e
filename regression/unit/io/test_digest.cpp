// Digests of files: of one, of several whatever their names, of parts of large ones; and that reading can be ended.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "io/store/digest.hpp"
#include "io/tokens/token_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

struct Digests : testing::Test {
  fs::path dir = fs::path(testing::TempDir()) / ("sestina-digest-" + std::to_string(::getpid()));
  Digests() { fs::create_directories(dir); }
  ~Digests() override { fs::remove_all(dir); }
  std::string file(const char* name, const std::string& text) {
    std::ofstream(dir / name) << text;
    return (dir / name).string();
  }
};

TEST_F(Digests, ContentCountsNotNames) {
  const std::string a = file("a", "one"), same = file("b", "one"), other = file("c", "two"),
                    longer = file("d", "onetwo");
  EXPECT_EQ(digest_files({a}).xxh3_128, digest_files({same}).xxh3_128);
  EXPECT_NE(digest_files({a}).xxh3_128, digest_files({other}).xxh3_128);
  EXPECT_NE(digest_files({a, other}).xxh3_128, digest_files({other, a}).xxh3_128);
  EXPECT_NE(digest_files({a, other}).xxh3_128, digest_files({longer}).xxh3_128);  // where one ends counts too
  EXPECT_EQ(digest_files({a, other}).size, 6u);
}

TEST_F(Digests, LargeFilesBySizeAndSamples) {
  const std::string large = file("large", std::string(20 << 20, 'x'));
  const std::string before = digest_files({large}).xxh3_128, whole = digest_files({large}, {}, true).xxh3_128;
  const auto put = [&](std::streamoff at) { std::fstream(large, std::ios::in | std::ios::out).seekp(at).put('y'); };
  put(100000);  // between the first stretches
  EXPECT_EQ(digest_files({large}).xxh3_128, before);
  EXPECT_NE(digest_files({large}, {}, true).xxh3_128, whole);
  put((20 << 20) - 1);  // the last byte of the last one
  const std::string changed = digest_files({large}).xxh3_128;
  EXPECT_NE(changed, before);
  fs::resize_file(large, (20 << 20) + 1);
  EXPECT_NE(digest_files({large}).xxh3_128, changed);
}

TEST_F(Digests, SourcesWithTheirIndexes) {
  DataSource source;
  source.format = DataSource::Format::megatron;
  source.path = (dir / "tokens").string();
  file("tokens.bin", "tokens");
  file("tokens.idx", "index");
  const FileDigest before = digest_source(source);
  EXPECT_EQ(before.size, 11u);
  file("tokens.idx", "Index");
  EXPECT_NE(digest_source(source).xxh3_128, before.xxh3_128);
}

TEST_F(Digests, LongReadingIsPolledAndCanBeEnded) {
  const std::string path = file("file", std::string(5 << 20, 'x'));
  int polls = 0;
  digest_file(path, [&] { ++polls; });
  EXPECT_GE(polls, 5);
  struct Ended {};
  EXPECT_THROW(digest_file(path, [] { throw Ended(); }), Ended);
  EXPECT_THROW(digest_files({path}, [] { throw Ended(); }), Ended);
}

TEST_F(Digests, PipesAreNotWaitedFor) {
  const std::string pipe = (dir / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, dir.string(), std::string("/dev/zero"), std::string(300, 'x')}) {
    try {
      digest_file(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::input_missing) << error.what();
    }
  }
}

}  // namespace
}  // namespace sestina
