// Whole files copied by the store's engine: the same bytes by every way, through short and failing transfers; one clear
// error, and no part of a file taken for a whole one.
#include "io/store/copy_file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "kernels/base/threads.hpp"
#include "regression/unit/io/test_files.hpp"
#include "regression/unit/io/test_store.hpp"
#include "regression/unit/resident_pages.hpp"

namespace sestina {
namespace {

constexpr std::size_t mebi = std::size_t{1} << 20, several = 7 * mebi + 13;

struct CopyFile : testing::Test {
  CopyFile() { ::setenv("SESTINA_RETRY_SECONDS", "0.1", 1); }
  ~CopyFile() override { ::unsetenv("SESTINA_RETRY_SECONDS"); }

  void give(std::size_t size) {
    bytes = test::noise_text(size);
    test::write_bytes(from, bytes);
  }
  void expect_copied(const CopyOptions& options) {
    const FileDigest digest = copy_whole_file(from, to, options);
    EXPECT_EQ(digest.size, bytes.size());
    EXPECT_EQ(digest.xxh3_128, digest128(bytes.data(), bytes.size()));
    EXPECT_TRUE(test::read_bytes(to) == bytes) << bytes.size();
  }
  void expect_refused(std::initializer_list<std::string> words, const CopyOptions& options) {
    test::expect_error(ExitCode::io_error, words, [&] { copy_whole_file(from, to, options); });
    EXPECT_EQ(std::filesystem::file_size(to), 0u) << "a part might be taken for the whole";
  }

  test::TemporaryFolder folder;
  std::string from = folder / "from", to = folder / "to", bytes;
};

TEST_F(CopyFile, EverySizeByEveryWay) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096},
                                 std::size_t{4097}, copy_chunk_bytes, copy_chunk_bytes + 1, several}) {
    give(size);
    for (const bool ring : {true, false})
      for (const bool direct : {true, false})
        for (const int depth : {1, 3, 16}) {
          SCOPED_TRACE(fmt::format("{} bytes, ring {}, direct {}, depth {}", size, ring, direct, depth));
          test::write_bytes(to, std::string(size + 9000, 'x'));  // what was there goes
          expect_copied({.queue_depth = depth, .direct = direct, .ring = ring});
        }
  }
}

TEST_F(CopyFile, EveryByteGoesThroughABoundedNumberOfBuffers) {
  give(several);
  test::Watch watch;
  int highest = 0;
  watch.error = [&](const ChunkEngine::Chunk& chunk) {
    EXPECT_EQ(chunk.buffer, nullptr);
    EXPECT_LE(chunk.begin + chunk.bytes, copy_chunk_bytes);
    EXPECT_EQ(chunk.offset % block_alignment + chunk.bytes % block_alignment, 0u);
    highest = std::max(highest, chunk.slot);
    return 0;
  };
  expect_copied({.queue_depth = 5, .wrap = watch.wrap()});
  EXPECT_EQ(watch.bytes_read, several);
  EXPECT_EQ(watch.bytes_written, padded_to_blocks(several));
  EXPECT_EQ(highest, 4);
  EXPECT_GT(watch.most, 1) << "one by one";
  EXPECT_LE(watch.most, 5);
}

TEST_F(CopyFile, ShortTransfersAndPassingErrorsAreMadeUpFor) {
  give(several);
  for (const bool ring : {true, false}) {
    test::Watch watch;
    watch.piece = 5 * block_alignment;
    int calls = 0, broken = 0;
    watch.error = [&](const ChunkEngine::Chunk&) {
      ++calls;
      if (calls % 101 == 0 && broken < 3) return ++broken, EIO;
      return calls % 53 == 0 ? EAGAIN : calls % 37 == 0 ? EINTR : 0;
    };
    expect_copied({.ring = ring, .wrap = watch.wrap()});
    EXPECT_GT(watch.reads, static_cast<int>(several / watch.piece));
    EXPECT_GT(watch.writes, static_cast<int>(several / watch.piece));
  }
}

TEST_F(CopyFile, FullDiskInTheMiddleIsOneClearError) {
  give(several);
  test::Watch watch;
  watch.error = [](const ChunkEngine::Chunk& chunk) { return chunk.writes && chunk.offset >= 3 * mebi ? ENOSPC : 0; };
  for (const bool ring : {true, false}) {
    const std::string text = test::said(
        [&] { expect_refused({to + ": writing: No space left on device"}, {.ring = ring, .wrap = watch.wrap()}); });
    EXPECT_NE(text.find(to + ": No space left on device; retrying"), std::string::npos) << text;
    EXPECT_EQ(test::lines(text), 1u) << text;
  }
  EXPECT_EQ(watch.under_way, 0);
}

TEST_F(CopyFile, RoomThatComesBackIsWaitedFor) {
  ::setenv("SESTINA_RETRY_SECONDS", "0.5", 1);  // for each time that it is full
  give(several);
  test::Watch watch;
  const auto begin = std::chrono::steady_clock::now();
  watch.error = [&](const ChunkEngine::Chunk& chunk) {
    if (!chunk.writes) return 0;
    const double now = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (chunk.offset >= 6 * mebi) return now < 0.8 ? ENOSPC : 0;
    return chunk.offset >= 3 * mebi && now < 0.4 ? ENOSPC : 0;
  };
  const std::string text = test::said([&] { expect_copied({.queue_depth = 1, .wrap = watch.wrap()}); });
  EXPECT_EQ(test::lines(text), 1u) << text;
}

// The limit stands for a disk that is really full, with another errno.
TEST_F(CopyFile, LimitOfTheSystemInTheMiddle) {
  give(several);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  for (const bool ring : {true, false})
    for (const bool direct : {true, false}) {
      quiet_thread([&] {
        const rlimit small{3 * mebi, before.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &small);
        expect_refused({to, "writing", "File too large"}, {.direct = direct, .ring = ring});
        ::setrlimit(RLIMIT_FSIZE, &before);
      }).join();
      expect_copied({.direct = direct, .ring = ring});
    }
}

TEST_F(CopyFile, FailingDiskIsNamed) {
  give(several);
  test::Watch watch;
  watch.error = [](const ChunkEngine::Chunk& chunk) { return !chunk.writes && chunk.offset >= mebi ? EIO : 0; };
  expect_refused({from + ": reading: Input/output error"}, {.wrap = watch.wrap()});
  watch.error = [](const ChunkEngine::Chunk& chunk) { return chunk.writes && chunk.offset >= mebi ? EIO : 0; };
  expect_refused({to + ": writing: Input/output error"}, {.wrap = watch.wrap()});
  watch.error = {};
  watch.piece = 100;  // never a whole block
  expect_refused({from + ": reading: nothing more is moved"}, {.wrap = watch.wrap()});
}

TEST_F(CopyFile, RefusesWhatCannotBeOpened) {
  test::expect_error(ExitCode::io_error, {from + ": cannot be opened: No such file"},
                     [&] { copy_whole_file(from, to); });
  EXPECT_FALSE(std::filesystem::exists(to));
  test::expect_error(ExitCode::io_error, {folder.path(), "is not a regular file"},
                     [&] { copy_whole_file(folder.path(), to); });
  give(10);
  test::expect_error(ExitCode::io_error, {"none/to: cannot be opened: No such file"},
                     [&] { copy_whole_file(from, folder / "none/to"); });
}

TEST_F(CopyFile, PageCacheWhereDirectTransfersAreRefusedOnlyLater) {
  give(several);
  test::Watch watch;
  const auto direct = [](int file) { return (::fcntl(file, F_GETFL) & O_DIRECT) != 0; };
  watch.error = [&](const ChunkEngine::Chunk& chunk) { return direct(chunk.file) ? EINVAL : 0; };
  std::vector<std::string> notices;
  expect_copied({.notice = [&](const std::string& text) { notices.push_back(text); }, .wrap = watch.wrap()});
  std::size_t without = 0;  // one for each file; the ring may have one of its own
  for (const std::string& notice : notices) without += notice.find("no O_DIRECT") != std::string::npos ? 1 : 0;
  EXPECT_EQ(without, 2u);
  watch.error = [](const ChunkEngine::Chunk& chunk) { return chunk.writes ? EINVAL : 0; };
  expect_refused({to + ": writing: Invalid argument"}, {.wrap = watch.wrap()});
}

std::size_t resident_pages(const std::string& path, std::size_t size) {
  const int file = ::open(path.c_str(), O_RDONLY);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  const std::size_t count = test::resident_pages(memory, size);
  ::munmap(memory, size);
  ::close(file);
  return count;
}

TEST_F(CopyFile, PageCacheIsNotFilled) {
  struct statfs disk {};
  ASSERT_EQ(::statfs(folder.path().c_str(), &disk), 0);
  if (disk.f_type == TMPFS_MAGIC) GTEST_SKIP() << "files lie in memory here";
  give(24 * mebi);
  const int file = ::open(from.c_str(), O_RDONLY);
  ASSERT_EQ(forget_pages(file, 0, 0, true), 0);
  ::close(file);
  const std::size_t all = bytes.size() / 4096;
  if (resident_pages(from, bytes.size()) > all / 8) GTEST_SKIP() << "this system does not forget pages";
  for (const bool direct : {true, false}) {
    copy_whole_file(from, to, {.direct = direct});
    EXPECT_LT(resident_pages(from, bytes.size()), all / 8) << direct;
    EXPECT_LT(resident_pages(to, bytes.size()), all / 8) << direct;
  }
}

struct CopyFileDeathTest : CopyFile {
  // In a process of its own, since what `prepare` does cannot be taken back: exits with 0 when the file is copied with
  // so many notices, each with `words`.
  [[noreturn]] void copy_alone(const std::function<void()>& prepare, const std::string& words, std::size_t count) {
    prepare();
    std::string text;
    expect_copied({.notice = [&](const std::string& notice) { text += notice + "\n"; }});
    std::size_t found = 0;
    for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
    const bool good = !HasFailure() && found == count && test::lines(text) == count;
    if (!good) std::fprintf(stderr, "said: %s\n", text.c_str());
    std::_Exit(good ? 0 : 1);
  }
  // A ring's notice of its own, of locked memory, would be one too many.
  void SetUp() override {
    give(several);
    std::string text;
    copy_whole_file(from, to, {.notice = [&](const std::string& notice) { text += notice; }});
    if (!chunk_ring_compiled() || !text.empty()) GTEST_SKIP() << "not every way is to be had here: " << text;
  }
};

TEST_F(CopyFileDeathTest, ThreadsWhereIoUringIsForbidden) {
  EXPECT_EXIT(copy_alone([] { test::forbid(__NR_io_uring_setup, EPERM); }, "io_uring is not to be had here", 1),
              ::testing::ExitedWithCode(0), "");
}

TEST_F(CopyFileDeathTest, PageCacheWhereTheFileSystemHasNoDirectTransfers) {
  EXPECT_EXIT(copy_alone([] { test::forbid(__NR_openat, EINVAL, 2, O_DIRECT); }, "no O_DIRECT", 2),
              ::testing::ExitedWithCode(0), "");
}

// Of a file in the page cache the first write to the disk is the copy's own: an error of it is told to nobody else.
TEST_F(CopyFileDeathTest, ErrorBehindThePageCacheIsTold) {
  EXPECT_EXIT(
      {
        test::forbid(__NR_fdatasync, EIO);
        expect_refused({to + ": fsync: Input/output error"}, {.direct = false});
        std::_Exit(HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sestina
