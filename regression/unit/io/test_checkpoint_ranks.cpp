// Checkpoints that several ranks write together: each has its own writer and I/O thread, and a slab of every tensor.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <list>
#include <memory>
#include <thread>

#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/checkpoint_save.hpp"
#include "io/checkpoint/checkpoint_stage.hpp"
#include "io/checkpoint/checkpoint_verify.hpp"
#include "io/checkpoint/hdf5_file.hpp"
#include "kernels/base/error.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

constexpr int kRanks = 4;

// A whole tensor, and who holds what of it.
struct Tensor {
  std::string path;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::vector<Slab> of_rank;
  Bytes bytes = {};

  std::size_t inner() const {
    std::size_t n = size_of(dtype);
    for (std::size_t i = 2; i < shape.size(); ++i) n *= static_cast<std::size_t>(shape[i]);
    return n;
  }
  Bytes slab(const Slab& s) const {
    Bytes packed;
    for (std::int64_t row = s.row_begin; row < s.row_end; ++row) {
      const auto begin = static_cast<std::size_t>(row * columns_of(shape) + s.col_begin) * inner();
      const auto size = static_cast<std::size_t>(s.cols()) * inner();
      packed.insert(packed.end(), bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                    bytes.begin() + static_cast<std::ptrdiff_t>(begin + size));
    }
    return packed;
  }
  StateField field(const Slab& s) const {
    StateField field;
    field.path = path;
    field.dtype = dtype;
    field.shape = shape;
    field.row_begin = s.row_begin;
    field.row_end = s.row_end;
    if (shape.size() > 1 && s.cols() > 0) {
      field.col_begin = s.col_begin;
      field.col_end = s.col_end;
    }
    field.version = 7;
    return field;
  }
  Slab whole() const { return {0, shape[0], 0, columns_of(shape)}; }
};

struct CheckpointRanks : testing::Test {
  test::TemporaryFolder folder;
  std::string dir = folder / "run";
  std::vector<Tensor> tensors = {
      // columns, uneven
      {"/model/columns", DType::f32, {13, 10}, {{0, 13, 0, 3}, {0, 13, 3, 4}, {0, 13, 4, 9}, {0, 13, 9, 10}}},
      // rows, uneven, rank 1 has none
      {"/model/rows", DType::bf16, {11, 6}, {{0, 5, 0, 6}, {5, 5, 0, 6}, {5, 6, 0, 6}, {6, 11, 0, 6}}},
      // both, with cuts of the rows that differ between the columns
      {"/model/both", DType::f32, {8, 9}, {{0, 3, 0, 4}, {0, 6, 4, 9}, {3, 8, 0, 4}, {6, 8, 4, 9}}},
      {"/optimizer/model.rows/cube", DType::f64, {4, 3, 2}, {{0, 4, 0, 1}, {0, 0, 0, 0}, {0, 4, 1, 3}, {0, 0, 0, 0}}},
      {"/optimizer/model.norm/m", DType::f32, {7}, {{0, 2, 0, 1}, {2, 4, 0, 1}, {4, 6, 0, 1}, {6, 7, 0, 1}}},
      {"/optimizer/model.rows/step", DType::i64, {1}, {{0, 0, 0, 1}, {0, 0, 0, 1}, {0, 0, 0, 1}, {0, 1, 0, 1}}},
      {"/optimizer/none/m", DType::f32, {0, 6}, std::vector<Slab>(kRanks, {0, 0, 0, 6})},
  };
  CheckpointOptions options;
  std::vector<CheckpointOptions> options_of_rank = std::vector<CheckpointOptions>(kRanks);
  double timeout = 20;
  std::vector<std::unique_ptr<CheckpointWriter>> writers;

  CheckpointRanks() {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      std::int64_t size = 1;
      for (const std::int64_t n : tensors[t].shape) size *= n;
      tensors[t].bytes.resize(static_cast<std::size_t>(size) * size_of(tensors[t].dtype));
      for (std::size_t i = 0; i < tensors[t].bytes.size(); ++i)
        tensors[t].bytes[i] = static_cast<std::byte>(i * 31 + t * 7 + (i >> 8));
    }
  }

  static RunState run(std::int64_t step) {
    RunState state;
    state.step = step;
    state.sample = 5;
    state.deck = "[run]\nseed = 3\n";
    state.loss = 1.25;
    return state;
  }
  std::string at(std::int64_t step) const { return dir + "/checkpoints/" + step_folder(step); }
  void start() {
    writers.clear();
    for (int rank = 0; rank < kRanks; ++rank)
      writers.push_back(
          std::make_unique<CheckpointWriter>(dir, options_of_rank[static_cast<std::size_t>(rank)],
                                             WriterGroup{rank, kRanks, std::to_string(::getpid()), timeout, 2, 2, 1}));
  }
  void begin_save(int rank, std::int64_t step) {
    std::list<Bytes> memory;  // until the snapshot has its copy
    std::vector<StateField> fields;
    for (const Tensor& tensor : tensors) {
      const Slab& slab = tensor.of_rank[static_cast<std::size_t>(rank)];
      fields.push_back(tensor.field(slab));
      memory.push_back(tensor.slab(slab));
      fields.back().data = memory.back().data();
    }
    CheckpointWriter& writer = *writers[static_cast<std::size_t>(rank)];
    take_snapshot(fields, run(step), {}, writer.slot());
    writer.save();
  }
  // All ranks but `silent` save; returns the first rank's event.
  CheckpointWriter::Event save(std::int64_t step, int silent = -1) {
    if (writers.empty()) start();
    for (int rank = 0; rank < kRanks; ++rank)
      if (rank != silent) begin_save(rank, step);
    for (const auto& writer : writers) writer->wait();
    return writers[0]->take_events().at(0);
  }
  static std::size_t files_below(const fs::path& folder) {
    std::size_t count = 0;
    std::error_code none;
    for (const auto& entry : fs::recursive_directory_iterator(folder, none))
      count += entry.path().extension() == ".h5" || entry.path().extension() == ".json" ? 1 : 0;
    return count;
  }
  std::vector<std::string> names_in_checkpoints() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir + "/checkpoints")) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  void expect_all(const CheckpointReader& reader) const {
    ASSERT_EQ(reader.entries().size(), tensors.size());
    for (const Tensor& tensor : tensors) expect_slab(reader, tensor, tensor.whole());
  }
  static void expect_slab(const CheckpointReader& reader, const Tensor& tensor, const Slab& slab) {
    const Bytes expected = tensor.slab(slab);
    Bytes got(expected.size() + 8, std::byte{0x77});
    reader.read(tensor.field(slab), got.data());
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), got.begin()))
        << tensor.path << " rows " << slab.row_begin << " " << slab.row_end << " columns " << slab.col_begin << " "
        << slab.col_end;
    ASSERT_TRUE(std::all_of(got.end() - 8, got.end(), [](std::byte b) { return b == std::byte{0x77}; }));
  }
};

TEST_F(CheckpointRanks, ReadBackWholeAndInEveryOtherCut) {
  ASSERT_EQ(save(1000).error, "");
  EXPECT_EQ(verify_checkpoint(at(1000), true), "");  // global.h5 too
  for (const Verify verify : {Verify::all, Verify::opened, Verify::full})
    expect_all(CheckpointReader(at(1000), verify));
  const CheckpointReader reader(at(1000), Verify::opened);
  EXPECT_EQ(reader.run().sample, 5u);
  EXPECT_EQ(reader.entries()[0].version, 7u);
  for (const Tensor& tensor : tensors)
    for (std::int64_t r0 = 0; r0 <= tensor.shape[0]; r0 += 2)
      for (std::int64_t r1 = r0; r1 <= tensor.shape[0]; ++r1)
        for (std::int64_t c0 = 0; c0 < columns_of(tensor.shape); ++c0)
          for (std::int64_t c1 = c0 + 1; c1 <= columns_of(tensor.shape); ++c1)
            ASSERT_NO_FATAL_FAILURE(expect_slab(reader, tensor, {r0, r1, c0, c1}));
  EXPECT_EQ(names_in_checkpoints(), (std::vector<std::string>{"latest", step_folder(1000)}));
}

TEST_F(CheckpointRanks, ManifestTellsTheLayoutAndOnlyWhatIsHeld) {
  save(1);
  const Manifest manifest = load_manifest(at(1));
  EXPECT_EQ(manifest.ranks, 4);
  EXPECT_EQ(manifest.dp, 2);
  EXPECT_EQ(manifest.tp, 2);
  ASSERT_EQ(manifest.files.size(), 5u);
  EXPECT_EQ(manifest.files[3].name, "shard_00003.h5");
  EXPECT_EQ(manifest.tensors[0].pieces[2].col_begin, 4);
  EXPECT_EQ(manifest.tensors[1].pieces.size(), 3u);     // rank 1 has no rows
  EXPECT_EQ(manifest.tensors[1].pieces[0].col_end, 0);  // all columns
  std::size_t files = 0;                                // no parts are left
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(at(1))) ++files;
  EXPECT_EQ(files, 6u);
  EXPECT_TRUE(writers[0]->outcome_known_here());
  EXPECT_FALSE(writers[1]->outcome_known_here());
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_TRUE(writers[static_cast<std::size_t>(rank)]->take_events().empty());
}

TEST_F(CheckpointRanks, StagedOnEachRanksOwnDisk) {
  for (int rank = 0; rank < kRanks; ++rank)
    options_of_rank[static_cast<std::size_t>(rank)].staging_dir = folder / ("fast" + std::to_string(rank % 2));
  ASSERT_EQ(save(1).error, "");
  ASSERT_EQ(save(2).error, "");
  EXPECT_EQ(verify_checkpoint(at(2), true), "");
  expect_all(CheckpointReader(at(2), Verify::all));
  EXPECT_TRUE(fs::is_empty(folder / "fast0"));
  EXPECT_TRUE(fs::is_empty(folder / "fast1"));
}

TEST_F(CheckpointRanks, TrainingGoesOnWhenItsStageHasIt) {
  for (auto& o : options_of_rank) {
    o.staging_dir = folder / "fast";
    o.async = false;
  }
  start();
  begin_save(0, 1);  // comes back although no other rank has begun
  EXPECT_TRUE(writers[0]->busy());
  EXPECT_EQ(files_below(folder / "fast"), 1u);
  EXPECT_FALSE(fs::exists(dir + "/checkpoints/latest"));
  for (int rank = 1; rank < kRanks; ++rank) begin_save(rank, 1);
  for (const auto& writer : writers) writer->wait();
  EXPECT_EQ(writers[0]->take_events().at(0).error, "");
  EXPECT_EQ(names_in_checkpoints(), (std::vector<std::string>{"latest", step_folder(1)}));
  EXPECT_TRUE(fs::is_empty(folder / "fast"));
}

// A process of its own that is killed while the shards of `hanging` wait at pipes in their places in the run directory;
// all others are there. Until the ranks below `noted` have staged.
struct CheckpointStages : CheckpointRanks {
  void save_and_kill(std::int64_t step, const std::vector<int>& hanging, int noted = kRanks) {
    writers.clear();
    for (auto& o : options_of_rank) o.staging_dir = folder / "fast";
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      start();  // removes what seems to be left of an earlier process of this number
      const std::string place = fmt::format("{}/checkpoints/{}.1.tmp-{}", dir, step_folder(step), ::getpid());
      fs::create_directories(place);
      for (const int rank : hanging) ::mkfifo(fmt::format("{}/shard_{:05}.h5", place, rank).c_str(), 0600);
      for (int rank = 0; rank < noted; ++rank) begin_save(rank, step);
      ::pause();
    }
    const std::string all = fmt::format("{}/checkpoints/{}.1.staged.tmp-{}", dir, step_folder(step), child);
    for (int i = 0; i < 2000 && files_below(all) < static_cast<std::size_t>(noted); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(files_below(all), static_cast<std::size_t>(noted));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  // What the next start does; "" or why it cannot be completed.
  std::string complete() {
    std::string problem;
    for (const std::string& notes : staged_leftovers(dir)) {
      drain_leftover(notes);
      finish_leftover(dir, notes, problem);
    }
    return problem;
  }
  void expect_saved(std::int64_t step) {
    EXPECT_EQ(verify_checkpoint(at(step), true), "");
    expect_all(CheckpointReader(at(step), Verify::all));
    EXPECT_EQ(fs::read_symlink(dir + "/checkpoints/latest"), step_folder(step));
  }
};

TEST_F(CheckpointStages, AKillBetweenStageAndRunDirectoryLosesNothing) {
  ASSERT_EQ(save(1).error, "");
  const std::string kept = test::read_bytes(at(1) + "/shard_00002.h5");
  save_and_kill(2, {0, 2, 3});
  EXPECT_EQ(fs::read_symlink(dir + "/checkpoints/latest"), step_folder(1)) << "moved before all was there";
  EXPECT_EQ(complete(), "");
  expect_saved(2);
  EXPECT_EQ(names_in_checkpoints(), (std::vector<std::string>{"latest", step_folder(1), step_folder(2)}));
  EXPECT_TRUE(fs::is_empty(folder / "fast"));
  EXPECT_EQ(load_manifest(at(2)).serial, load_manifest(at(1)).serial + 1);
  EXPECT_EQ(load_manifest(at(2)).run.deck, "[run]\nseed = 3\n");
  EXPECT_EQ(test::read_bytes(at(1) + "/shard_00002.h5"), kept);
  EXPECT_TRUE(staged_leftovers(dir).empty());
}

TEST_F(CheckpointStages, AKillBehindTheRenameMovesTheLinkAlone) {
  save_and_kill(5, {1});
  const std::string notes = staged_leftovers(dir).at(0);
  fs::copy(notes, folder / "notes");
  EXPECT_EQ(complete(), "");
  const auto written = fs::last_write_time(at(5) + "/manifest.json");
  fs::copy(folder / "notes", notes);
  fs::remove(dir + "/checkpoints/latest");
  EXPECT_EQ(complete(), "");
  expect_saved(5);
  EXPECT_EQ(fs::last_write_time(at(5) + "/manifest.json"), written);
  EXPECT_FALSE(fs::exists(notes));
}

TEST_F(CheckpointStages, AStageThatIsGoneOrDamagedIsNamed) {
  ASSERT_EQ(save(1).error, "");
  const auto stage_of = [&](int rank) {
    for (const auto& entry : fs::recursive_directory_iterator(folder / "fast"))
      if (entry.path().filename() == fmt::format("shard_{:05}.h5", rank)) return entry.path();
    return fs::path();
  };
  for (const bool gone : {true, false}) {
    save_and_kill(2, {0, 1, 2, 3});
    const fs::path path = stage_of(3);
    if (gone) {
      fs::remove(path);
    } else {
      std::string bytes = test::read_bytes(path);
      bytes[bytes.size() / 2] ^= 1;
      test::write_bytes(path, bytes);
    }
    const std::string problem = complete();
    EXPECT_NE(problem.find("step 2 was saved on staging disks alone"), std::string::npos) << problem;
    EXPECT_NE(problem.find(path), std::string::npos) << problem;
    EXPECT_EQ(fs::read_symlink(dir + "/checkpoints/latest"), step_folder(1));
    start();  // as the next run does: nothing is left of it
    EXPECT_EQ(names_in_checkpoints(), (std::vector<std::string>{"latest", step_folder(1)}));
    EXPECT_TRUE(fs::is_empty(folder / "fast"));
  }
}

TEST_F(CheckpointStages, ASaveThatNotAllHaveStagedIsNoCheckpoint) {
  save_and_kill(2, {0}, kRanks - 1);
  EXPECT_TRUE(staged_leftovers(dir).empty());
}

TEST_F(CheckpointRanks, KeepsTheNewest) {
  for (auto& o : options_of_rank) o.keep = 2;
  for (std::int64_t step = 1; step <= 4; ++step) ASSERT_EQ(save(step).error, "");
  ASSERT_EQ(save(4).error, "");  // again: replaces it
  EXPECT_EQ(names_in_checkpoints(), (std::vector<std::string>{"latest", step_folder(3), step_folder(4)}));
  EXPECT_EQ(verify_checkpoint(at(4), true), "");
}

TEST_F(CheckpointRanks, OneRankThatFailsFailsTheSave) {
  options_of_rank[2].staging_dir = folder / "fast";
  ASSERT_EQ(save(1).error, "");
  fs::remove_all(folder / "fast");
  test::write_bytes(folder / "fast", "in the way of the staging folder");
  const CheckpointWriter::Event event = save(2);
  EXPECT_NE(event.error.find("rank 2: "), std::string::npos) << event.error;
  EXPECT_NE(event.error.find("fast"), std::string::npos) << event.error;
  EXPECT_EQ(writers[0]->failures_in_a_row(), 1);
  ASSERT_EQ(writers[2]->take_events().size(), 1u);
  EXPECT_EQ(verify_checkpoint(at(1), true), "");
  fs::remove(folder / "fast");
  EXPECT_EQ(save(3).error, "");
  EXPECT_EQ(writers[0]->failures_in_a_row(), 0);
  EXPECT_EQ(names_in_checkpoints(), (std::vector<std::string>{"latest", step_folder(1), step_folder(3)}));
  EXPECT_EQ(verify_checkpoint(at(3), true), "");
}

TEST_F(CheckpointRanks, TheFirstRankMayFailToo) {
  options_of_rank[0].staging_dir = folder / "fast";
  ASSERT_EQ(save(1).error, "");
  fs::remove_all(folder / "fast");
  test::write_bytes(folder / "fast", "in the way of the staging folder");
  EXPECT_NE(save(2).error.find("fast"), std::string::npos);
  EXPECT_EQ(verify_checkpoint(at(1), true), "");
  fs::remove(folder / "fast");
  EXPECT_EQ(save(2).error, "");
  EXPECT_EQ(names_in_checkpoints(), (std::vector<std::string>{"latest", step_folder(1), step_folder(2)}));
}

TEST_F(CheckpointRanks, ARankThatNeverWritesEndsTheSaveInTime) {
  ASSERT_EQ(save(1).error, "");
  timeout = 0.2;
  start();
  const CheckpointWriter::Event event = save(2, 3);
  EXPECT_NE(event.error.find("rank 3 did not write its part within 0.2 s"), std::string::npos) << event.error;
  EXPECT_LT(event.seconds, 10);
  EXPECT_EQ(names_in_checkpoints(), (std::vector<std::string>{"latest", step_folder(1)}));
  // It wakes up when the others have given up: its shard is in nobody's way, and goes.
  begin_save(3, 2);
  writers[3]->wait();
  EXPECT_EQ(names_in_checkpoints().size(), 3u);
  ASSERT_EQ(save(2).error, "");
  EXPECT_EQ(names_in_checkpoints(), (std::vector<std::string>{"latest", step_folder(1), step_folder(2)}));
  EXPECT_EQ(verify_checkpoint(at(2), true), "");
}

TEST_F(CheckpointRanks, StateThatMakesNoWholeIsNotSaved) {
  tensors[0].of_rank[1] = {0, 13, 2, 4};  // column 2 twice
  EXPECT_NE(save(1).error.find("/model/columns: rows [0, 13), columns [2, 4) overlap"), std::string::npos);
  tensors[0].of_rank[1] = {0, 0, 0, 1};  // column 3 nowhere
  EXPECT_NE(save(2).error.find("/model/columns: pieces cover 117 of 130"), std::string::npos);
  EXPECT_TRUE(list_checkpoints(dir).empty());
  EXPECT_TRUE(names_in_checkpoints().empty());
}

TEST_F(CheckpointRanks, OnlyTheFirstRankRemovesLeftovers) {
  const std::string dead = dir + "/checkpoints/step_00000002.4.tmp-9999999";  // beyond the largest pid
  test::write_bytes(dead + "/shard_00002.h5", "half");
  const WriterGroup other{1, kRanks, std::to_string(::getpid()), 1, 4, 1, 1};
  { CheckpointWriter writer(dir, options, other); }
  EXPECT_TRUE(fs::exists(dead));
  start();
  EXPECT_FALSE(fs::exists(dead));
}

TEST_F(CheckpointRanks, ReadersShareTheCheckingAndOpenOnlyWhatTheyNeed) {
  save(1);
  const Manifest manifest = load_manifest(at(1));
  for (const bool full : {false, true})
    for (int part = 0; part < 3; ++part) EXPECT_EQ(verify_part(at(1), part, 3, full), "");
  EXPECT_EQ(verify_part(at(1), 6, 7, true), "");  // more ranks than files
  const std::string shard = at(1) + "/shard_00002.h5";
  std::string bytes = test::read_bytes(shard);
  bytes[manifest.tensors[0].pieces[2].offset + 5] ^= 4;
  test::write_bytes(shard, bytes);
  EXPECT_EQ(verify_part(at(1), 0, 3, true), "");
  EXPECT_EQ(verify_part(at(1), 1, 3, true), "");
  const std::string problem = verify_part(at(1), 2, 3, false);
  EXPECT_NE(problem.find("shard_00002.h5: digest"), std::string::npos) << problem;
  EXPECT_NE(problem.find("/model/columns"), std::string::npos) << problem;
  const CheckpointReader reader(at(1), Verify::opened);
  expect_slab(reader, tensors[0], {0, 13, 1, 4});
  expect_slab(reader, tensors[1], {6, 11, 0, 6});
  Bytes out(tensors[0].bytes.size());
  test::expect_error(ExitCode::bad_data, {"shard_00002.h5", "digest"}, [&] {
    reader.read(tensors[0].field({0, 13, 3, 5}), out.data());
  });
  fs::remove(shard);
  test::expect_error(ExitCode::bad_data, {"shard_00002.h5", "missing"}, [&] {
    reader.read(tensors[0].field({0, 13, 3, 5}), out.data());
  });
}

TEST_F(CheckpointRanks, ShardsSwappedForeignExtraMissingOrCutAreNamed) {
  save(1);
  tensors[0].bytes[0] ^= std::byte{1};
  save(2);
  const auto refused = [&](std::initializer_list<std::string> words) {
    for (const bool full : {false, true})
      test::expect_error(ExitCode::bad_data, words, [&] { CheckpointReader reader(at(2), full); });
    EXPECT_NE(verify_checkpoint(at(2), false), "");
    EXPECT_EQ(newest_complete(dir, false, {}), at(1));
    EXPECT_NE(verify_part(at(2), 0, 2, false) + verify_part(at(2), 1, 2, false), "");
  };
  const auto shard = [&](std::int64_t step, int rank) { return at(step) + fmt::format("/shard_{:05}.h5", rank); };
  const std::string first = test::read_bytes(shard(2, 1)), second = test::read_bytes(shard(2, 3));
  test::write_bytes(shard(2, 1), second);
  test::write_bytes(shard(2, 3), first);
  refused({"shard_00001.h5"});
  test::write_bytes(shard(2, 1), first);
  refused({"shard_00003.h5"});
  test::write_bytes(shard(2, 3), second);
  EXPECT_EQ(verify_checkpoint(at(2), true), "");

  const std::string zero = test::read_bytes(shard(2, 0)), other = test::read_bytes(shard(1, 0));
  ASSERT_EQ(zero.size(), other.size());
  test::write_bytes(shard(2, 0), other);
  refused({"shard_00000.h5", "digest"});
  test::write_bytes(shard(2, 0), zero.substr(0, zero.size() - 100));
  refused({"shard_00000.h5", "bytes"});
  test::write_bytes(shard(2, 0), zero);
  test::write_bytes(shard(2, 4), zero);
  refused({"shard_00004.h5", "not listed"});
  fs::remove(shard(2, 4));
  fs::remove(shard(2, 2));
  refused({"shard_00002.h5", "missing"});
}

TEST_F(CheckpointRanks, ConvertedToAnyNumberOfShardsAndBack) {
  save(12);
  std::string from = at(12);
  std::int64_t ranks = 4;
  for (const int shards : {1, 5, 1, 20}) {
    const std::string to = folder / ("converted" + std::to_string(shards) + std::to_string(ranks));
    const Saved saved = convert_checkpoint(CheckpointReader(from, false), to, shards);
    EXPECT_EQ(saved.path, to + "/checkpoints/step_00000012");
    EXPECT_EQ(verify_checkpoint(saved.path, true), "");
    const CheckpointReader reader(saved.path, true);
    expect_all(reader);
    EXPECT_EQ(reader.entries()[0].version, 7u);
    EXPECT_EQ(reader.run().deck, run(12).deck);
    EXPECT_EQ(reader.run().loss, 1.25);
    const Manifest manifest = load_manifest(saved.path);
    EXPECT_EQ(manifest.ranks, shards);
    EXPECT_EQ(manifest.tensors[0].pieces.size(), static_cast<std::size_t>(std::min(shards, 13)));
    EXPECT_EQ(fs::read_symlink(to + "/checkpoints/latest"), "step_00000012");
    test::expect_error(ExitCode::cannot_create, {"step_00000012"},
                       [&] { convert_checkpoint(CheckpointReader(from, false), to, 2); });
    EXPECT_EQ(verify_checkpoint(saved.path, false), "");
    from = saved.path;
    ranks = shards;
  }
}

}  // namespace
}  // namespace sestina
