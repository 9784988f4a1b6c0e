// Errors that pass are tried again for a limited time, others are not; files that are appended to say why a line was
// lost.
#include "io/store/output_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

using Clock = std::chrono::steady_clock;

struct RetryTest : testing::Test {
  RetryTest() { setenv("SESTINA_RETRY_SECONDS", "0.2", 1); }
  ~RetryTest() override { unsetenv("SESTINA_RETRY_SECONDS"); }
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
};

TEST_F(RetryTest, TheBoundIsAMinuteUnlessTheEnvironmentSaysLess) {
  EXPECT_EQ(retry_seconds(), 0.2);
  for (const char* value : {"-1", "x", "", "1e9", "nan"}) {
    setenv("SESTINA_RETRY_SECONDS", value, 1);
    EXPECT_EQ(retry_seconds(), 60) << value;
  }
  unsetenv("SESTINA_RETRY_SECONDS");
  EXPECT_EQ(retry_seconds(), 60);
}

TEST_F(RetryTest, WhatPassesIsTriedAgain) {
  setenv("SESTINA_RETRY_SECONDS", "30", 1);
  for (const int error : {EINTR, EAGAIN, ENOSPC, EDQUOT, ESTALE, ETIMEDOUT}) {
    int calls = 0;
    const int result = retried("a file", [&] {
      errno = error;
      return ++calls < 4 ? -1 : 7;
    });
    EXPECT_EQ(result, 7) << error;
    EXPECT_EQ(calls, 4);
    calls = 0;
    const std::error_code code = retried_code(
        "a file", [&] { return ++calls < 3 ? std::error_code(error, std::system_category()) : std::error_code(); });
    EXPECT_FALSE(code);
    EXPECT_EQ(calls, 3);
  }
}

TEST_F(RetryTest, TimeBeginsAnewWhenItWentWell) {
  const std::string what = "a file";
  Retry retry(what);
  while (retry.again(ENOSPC)) continue;
  EXPECT_FALSE(retry.again(ENOSPC));
  retry.went_well();
  EXPECT_TRUE(retry.again(ENOSPC));
}

TEST_F(RetryTest, RoomIsThereBeforeAnythingIsWritten) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "f";
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT, 0600);
  EXPECT_TRUE(reserve_all(path, file, 0));
  EXPECT_TRUE(reserve_all(path, file, 10000));
  EXPECT_FALSE(reserve_all(path, file, std::uint64_t{1} << 62)) << "more than any disk has";
  EXPECT_TRUE(errno == ENOSPC || errno == EFBIG) << errno;
  ::close(file);
  EXPECT_LE(std::filesystem::file_size(path), 10000u);
}

TEST_F(RetryTest, WhatLastsIsNot) {
  for (const int error : {EIO, EFBIG, EROFS, EACCES, ENOENT, EBADF}) {
    int calls = 0;
    EXPECT_EQ(retried("a file", [&] { return ++calls, errno = error, -1; }), -1);
    EXPECT_EQ(errno, error);
    EXPECT_EQ(calls, 1) << error;
  }
}

TEST_F(RetryTest, EndsAtTheBound) {
  const auto begin = Clock::now();
  EXPECT_EQ(retried("a file", [] { return errno = ENOSPC, -1; }), -1);
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_GE(seconds_since(begin), 0.2);
  EXPECT_LT(seconds_since(begin), 5);
}

// A pipe that is full gives EAGAIN until somebody reads.
TEST_F(RetryTest, AWriteGoesOnWhereItStopped) {
  setenv("SESTINA_RETRY_SECONDS", "20", 1);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  std::string sent(300000, ' '), got;
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>('a' + i % 23);
  std::thread reader([&] {
    char buffer[4096];
    while (got.size() < sent.size()) {
      const ssize_t bytes = ::read(ends[0], buffer, sizeof buffer);
      if (bytes > 0) got.append(buffer, static_cast<std::size_t>(bytes));
    }
  });
  EXPECT_TRUE(write_all("a pipe", ends[1], sent.data(), sent.size()));
  reader.join();
  EXPECT_TRUE(got == sent);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(RetryTest, ALineThatIsLostKeepsItsErrno) {
  AppendFile full("/dev/full");
  const auto begin = Clock::now();
  EXPECT_FALSE(full.write("a line\n"));
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_GE(seconds_since(begin), 0.2);
  const auto again = Clock::now();
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(full.write("a line\n"));  // given up: no wait for each line
  EXPECT_LT(seconds_since(again), 2);
}

// A short write sets no errno: the reason is that of the write after it.
TEST_F(RetryTest, AShortWriteSaysWhy) {
  const test::TemporaryFolder folder;
  AppendFile file(folder / "metrics.jsonl");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  errno = 0;
  const bool written = file.write("0123456789abcdef\n");
  const int error = errno;
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
  EXPECT_FALSE(written);
  EXPECT_EQ(error, EFBIG);
  EXPECT_TRUE(file.write("next\n"));  // on a line of its own
  EXPECT_EQ(test::read_bytes(folder / "metrics.jsonl"), "0123456789\nnext\n");
}

TEST_F(RetryTest, AFileThatIsMovedAwayIsNoticed) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  AppendFile file(path);
  file.write("one\n");
  EXPECT_EQ(file.problem(), "");
  std::filesystem::rename(path, path + ".old");
  EXPECT_NE(file.problem().find("removed or renamed"), std::string::npos);
  AppendFile other(path);
  EXPECT_NE(file.problem().find("replaced"), std::string::npos);
  EXPECT_EQ(other.problem(), "");
  std::filesystem::rename(path + ".old", path);
  EXPECT_EQ(file.problem(), "");
}

}  // namespace
}  // namespace sestina
