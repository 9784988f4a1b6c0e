// What the first rank does for a checkpoint of N acted ranks grows as N log N: four times the ranks, about four times
// the processor time (a square would take sixteen).
#include <gtest/gtest.h>

#include <ctime>

#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_part.hpp"
#include "io/checkpoint/checkpoint_save.hpp"
#include "io/checkpoint/checkpoint_verify.hpp"
#include "io/checkpoint/hdf5_file.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

constexpr double most_growth = 9;

// What a rank wrote: its row of one tensor.
ShardPart part_of(int rank, int ranks) {
  const auto row = static_cast<std::int64_t>(rank);
  ShardPart part;
  part.file = {shard_name(rank), 64, "00000000000000000000000000000000"};
  part.tensors = {{"/model/weight", DType::f32, {ranks, 4}, 1, {{0, row, row + 1, 0, 0, 0, 16, "0000000000000000"}}}};
  return part;
}

double seconds_since(std::clock_t start) { return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC; }

// The later half of the ranks is there, the earlier half never comes: what looking for all of them takes.
double collecting(int ranks) {
  const test::TemporaryFolder folder;
  for (int rank = ranks / 2; rank < ranks; ++rank)
    test::write_bytes(folder / fmt::format("part_{:05}.json", rank), part_text(part_of(rank, ranks)));
  const std::clock_t start = std::clock();
  EXPECT_THROW(collect_parts(folder.path(), ranks, 0), Error);
  return seconds_since(start);
}

double merging(int ranks) {
  std::vector<ShardPart> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(part_of(ranks - 1 - rank, ranks));
  const std::clock_t start = std::clock();
  Manifest manifest;
  merge_parts(parts, manifest);
  EXPECT_EQ(manifest.tensors.at(0).pieces.size(), static_cast<std::size_t>(ranks));
  return seconds_since(start);
}

// All that the first rank does for one save, from its own shard to the published checkpoint, the others' parts being
// there as soon as their folder is.
double writing(int ranks) {
  const test::TemporaryFolder folder;
  const std::string run_dir = folder / "run", token = "acted";
  CheckpointWriter writer(run_dir, {}, {.rank = 0, .ranks = ranks, .token = token, .timeout = 60, .dp = ranks});
  const SaveFolders others(run_dir, "", 1, 1, token, 1);
  for (int rank = 1; rank < ranks; ++rank) {
    test::write_bytes(others.temporary() + "/" + shard_name(rank), std::string(64, 'x'));
    test::write_bytes(fmt::format("{}/part_{:05}.json", others.temporary(), rank), part_text(part_of(rank, ranks)));
  }
  float row[4] = {1, 2, 3, 4};
  StateField field;
  field.path = "/model/weight";
  field.dtype = DType::f32;
  field.shape = {ranks, 4};
  field.row_end = 1;
  field.data = row;
  Snapshot& snapshot = writer.slot();
  snapshot.run.step = 1;
  snapshot.fields = {field};
  const std::clock_t start = std::clock();
  writer.save();
  writer.wait();
  const double seconds = seconds_since(start);
  for (const auto& event : writer.take_events()) EXPECT_EQ(event.error, "");
  EXPECT_EQ(load_manifest(run_dir + "/checkpoints/step_00000001").ranks, ranks);
  return seconds;
}

template <class Work>
void expect_n_log_n(Work work, int rounds = 3) {
  double few = 1e9, many = 1e9;
  for (int round = 0; round < rounds; ++round) {
    few = std::min(few, work(1024));
    many = std::min(many, work(4096));
  }
  EXPECT_LT(many, most_growth * few) << few << " s of 1024 ranks, " << many << " s of 4096";
}

TEST(CheckpointScale, PartsOf4096RanksAreCollectedInTheirNumber) { expect_n_log_n(collecting); }
TEST(CheckpointScale, PartsOf4096RanksAreMergedInTheirNumber) { expect_n_log_n(merging); }
TEST(CheckpointScale, TheFirstOf4096RanksWritesInTheirNumber) { expect_n_log_n(writing, 2); }

}  // namespace
}  // namespace sestina
