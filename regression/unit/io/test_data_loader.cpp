#include "io/tokens/data_loader.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <numeric>
#include <set>

#include "kernels/base/threads.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

using test::TemporaryFolder;

class DataLoaderTest : public testing::Test {
 protected:
  DataLoaderTest() {
    MegatronWriter writer(folder_ / "a", 65000);
    std::vector<std::int32_t> values(901);
    std::iota(values.begin(), values.end(), 0);
    writer.add_document(values.data(), values.size());
    writer.finish();
    options_.sequence_length = 9;
    options_.source = {{DataSource::Format::megatron, folder_ / "a", 1}};
  }
  SampleSet open() const { return SampleSet(options_, Split::train, 65000, 1, nullptr); }

  TemporaryFolder folder_;
  DataOptions options_;
};

TEST_F(DataLoaderTest, HandsOverTheSamplesInOrder) {
  const SampleSet set = open();
  DataLoader loader(set, 4, 9, 0);
  Batch batch;
  for (std::uint64_t step = 0; step < 40; ++step) {
    EXPECT_EQ(loader.cursor(), 4 * step);
    loader.next(batch);
    ASSERT_EQ(batch.tokens.size(), 40u);
    ASSERT_EQ(batch.first_key.size(), 36u);
    for (std::uint64_t row = 0; row < 4; ++row) {
      std::int32_t tokens[10], first[9];
      set.read(4 * step + row, tokens, first);
      EXPECT_TRUE(std::equal(tokens, tokens + 10, batch.tokens.begin() + 10 * row));
    }
  }
  EXPECT_EQ(loader.cursor(), 160u);
}

// Fault 16: ranks that read every second sample, or a resume with another batch, see the same samples once each.
TEST_F(DataLoaderTest, ResumesWithAnotherBatchWithoutLossOrRepeat) {
  const SampleSet set = open();
  std::vector<std::int32_t> whole, parts;
  const auto collect = [&](std::uint64_t cursor, int size, int batches, std::vector<std::int32_t>& out) {
    DataLoader loader(set, size, 9, cursor);
    Batch batch;
    for (int i = 0; i < batches; ++i) {
      loader.next(batch);
      for (int row = 0; row < size; ++row) out.push_back(batch.tokens[10 * row]);
    }
    return loader.cursor();
  };
  collect(0, 10, 10, whole);
  const auto middle = collect(0, 4, 7, parts);
  collect(middle, 6, 12, parts);
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(std::set<std::int32_t>(whole.begin(), whole.end()).size(), 100u);
}

TEST_F(DataLoaderTest, UsesTheSameBuffersAgain) {
  const SampleSet set = open();
  DataLoader loader(set, 4, 9, 0);
  Batch batch;
  loader.next(batch);
  loader.next(batch);
  std::set<const void*> buffers;
  for (int i = 0; i < 10; ++i) {
    loader.next(batch);
    buffers.insert(batch.tokens.data());
    buffers.insert(batch.first_key.data());
  }
  EXPECT_EQ(buffers.size(), 4u);
}

TEST_F(DataLoaderTest, RefusesASetSmallerThanABatch) {  // fault 17
  const SampleSet set = open();
  EXPECT_EQ(DataLoader(set, 100, 9, 0).cursor(), 0u);
  test::expect_error(ExitCode::bad_data, {"100 windows of 9", "needs 101", "train.global_batch"},
                     [&] { DataLoader(set, 101, 9, 0); });
}

TEST_F(DataLoaderTest, EndsAtAnyMoment) {
  const SampleSet set = open();
  for (int i = 0; i < 50; ++i) {
    DataLoader loader(set, 2, 9, i);
    Batch batch;
    for (int k = 0; k < i % 3; ++k) loader.next(batch);
  }
}

TEST(QuietThreads, BlockSignalsInTheThreadAlone) {
  sigset_t inside, before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  quiet_thread([&] { pthread_sigmask(SIG_SETMASK, nullptr, &inside); }).join();
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
    EXPECT_EQ(sigismember(&inside, signal), 1);
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal));
  }
}

TEST(QuietThreads, LoopOverAllChunksAndThrowTheirErrors) {
  std::vector<int> seen(1003);
  parallel_chunks(seen.size(), 10, 4, [&](std::uint64_t begin, std::uint64_t end) {
    for (auto i = begin; i < end; ++i) ++seen[i];
  });
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 1003);
  parallel_chunks(0, 10, 4, [&](std::uint64_t, std::uint64_t) { FAIL(); });
  test::expect_error(ExitCode::bad_data, {"chunk 500"}, [&] {
    parallel_chunks(1000, 10, 4, [](std::uint64_t begin, std::uint64_t) {
      if (begin == 500) fail(ExitCode::bad_data, "chunk {}", begin);
    });
  });
}

}  // namespace
}  // namespace sestina
