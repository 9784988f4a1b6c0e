// Shards on their way from the stage to the run directory go by the store's engine, in a save and in the start after a
// kill; a copy that failed is not taken for a shard.
#include <fcntl.h>
#include <sys/syscall.h>

#include <cerrno>

#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/checkpoint_stage.hpp"
#include "regression/unit/io/test_files.hpp"
#include "regression/unit/io/test_store.hpp"

namespace sestina {
namespace {

constexpr std::size_t shard_bytes = (std::size_t{3} << 20) + 13;

struct Drain : testing::Test {
  Drain() {
    ::setenv("SESTINA_RETRY_SECONDS", "0.1", 1);
    test::write_bytes(stage, bytes);
    std::filesystem::create_directories(temporary);
  }
  ~Drain() override { ::unsetenv("SESTINA_RETRY_SECONDS"); }
  // What a run leaves that was killed while its only shard was copied.
  void leave_notes() {
    StageNote note;
    note.path = stage;
    note.part.file = shard;
    note.of.run.step = 2;
    note.of.run.extra = "{}";
    note.of.ranks = 1;
    write_stage_note(notes, note);
  }

  test::TemporaryFolder folder;
  const std::string bytes = test::noise_text(shard_bytes);
  const ManifestFile shard{"shard_00000.h5", bytes.size(), digest128(bytes.data(), bytes.size())};
  const std::string run = folder / "run", stage = folder / "fast/shard_00000.h5",
                    temporary = run + "/checkpoints/step_00000002.1.tmp-1",
                    notes = run + "/checkpoints/step_00000002.1.staged.tmp-1", target = temporary + "/shard_00000.h5";
};

TEST_F(Drain, GoesThroughTheEngineAndComparesWhatItRead) {
  test::Watch watch;
  drain_file(stage, target, shard, {.wrap = watch.wrap()});
  EXPECT_TRUE(test::read_bytes(target) == bytes);
  EXPECT_EQ(watch.bytes_read, bytes.size());
  EXPECT_EQ(watch.bytes_written, padded_to_blocks(bytes.size()));
  std::string wrong = bytes;
  wrong[shard_bytes - 1] ^= 1;
  test::write_bytes(stage, wrong);
  test::expect_error(ExitCode::io_error, {stage + ": what was read is not what was staged", shard.xxh3_128},
                     [&] { drain_file(stage, target, shard); });
}

TEST_F(Drain, StartAfterAKillGoesThroughTheEngineToo) {
  leave_notes();
  test::write_bytes(target, bytes.substr(0, 2 << 20));
  test::Watch watch;
  drain_leftover(notes, {.wrap = watch.wrap()});
  EXPECT_TRUE(test::read_bytes(target) == bytes);
  EXPECT_EQ(watch.bytes_written, padded_to_blocks(bytes.size()));
  drain_leftover(notes, {.wrap = watch.wrap()});
  EXPECT_EQ(watch.bytes_written, padded_to_blocks(bytes.size())) << "copied again";
}

// In the last chunk: all others are there by then.
TEST_F(Drain, FullDiskLeavesNothingThatIsTakenForTheShard) {
  leave_notes();
  test::Watch watch;
  watch.error = [](const ChunkEngine::Chunk& chunk) {
    return chunk.writes && chunk.offset + copy_chunk_bytes > shard_bytes ? ENOSPC : 0;
  };
  test::expect_error(ExitCode::io_error, {target + ": writing: No space left on device"},
                     [&] { drain_leftover(notes, {.wrap = watch.wrap()}); });
  std::string problem;
  EXPECT_FALSE(finish_leftover(run, notes, problem));
  EXPECT_NE(problem.find("is given up: " + stage), std::string::npos) << problem;
  EXPECT_FALSE(std::filesystem::exists(run + "/checkpoints/latest"));
  drain_leftover(notes);
  EXPECT_TRUE(test::read_bytes(target) == bytes);
}

struct DrainDeathTest : Drain {
  void SetUp() override {
    if (!test::can_forbid()) GTEST_SKIP() << "no seccomp on this machine";
    Drain::SetUp();
  }
  // A kill may have come between the copy and its fsync: the next start finds the shard whole, in memory.
  [[noreturn]] void finish_alone() {
    leave_notes();
    test::write_bytes(target, bytes);
    test::forbid(__NR_fsync, EIO);
    std::string problem;
    test::expect_error(ExitCode::io_error, {target + ": fsync"}, [&] { finish_leftover(run, notes, problem); });
    std::_Exit(HasFailure() || !problem.empty() ? 1 : 0);
  }
  // Saves have no engine that could be watched; but only the store says what the system refuses it, and once.
  [[noreturn]] void save_alone() {
    test::forbid(__NR_io_uring_setup, EPERM);
    test::forbid(__NR_openat, EINVAL, 2, O_DIRECT);
    CheckpointOptions options;
    options.staging_dir = folder / "fast";
    std::vector<float> values(1000, 1.f);
    StateField field;
    field.path = "/model/w";
    field.dtype = DType::f32;
    field.shape = {1000};
    field.row_end = 1000;
    field.data = values.data();
    const std::string text = test::said([&] {
      CheckpointWriter writer(run, options);
      for (const std::int64_t step : {1, 2}) {
        RunState state;
        state.step = step;
        take_snapshot({field}, state, {}, writer.slot());
        writer.save();
        writer.wait();
      }
      for (const CheckpointWriter::Event& event : writer.take_events()) EXPECT_EQ(event.error, "");
    });
    EXPECT_EQ(verify_checkpoint(run + "/checkpoints/step_00000002", true), "");
    EXPECT_EQ(test::lines(text), 3u) << text;  // two files, one engine
    for (const std::string place : {"/fast/", "/run/checkpoints/step_00000001."})
      EXPECT_NE(text.find(place), std::string::npos) << text;
    EXPECT_NE(text.find("shard_00000.h5: its file system has no O_DIRECT"), std::string::npos) << text;
    EXPECT_NE(text.find("threads read and write it"), std::string::npos) << text;
    if (HasFailure()) std::fprintf(stderr, "said: %s\n", text.c_str());
    std::_Exit(HasFailure() ? 1 : 0);
  }
};

TEST_F(DrainDeathTest, CopyThatWasNotSyncedIsNotPublished) {
  EXPECT_EXIT(finish_alone(), ::testing::ExitedWithCode(0), "");
}

TEST_F(DrainDeathTest, SavesGoThroughTheStore) { EXPECT_EXIT(save_alone(), ::testing::ExitedWithCode(0), ""); }

}  // namespace
}  // namespace sestina
