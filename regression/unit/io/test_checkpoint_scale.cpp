// What the first rank does for a checkpoint of N acted ranks grows as N log N: four times the ranks, about four times
// the processor time (a square would take sixteen).
#include <gtest/gtest.h>

#include <ctime>

#include "io/checkpoint/checkpoint_part.hpp"
#include "io/checkpoint/checkpoint_shard.hpp"
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

template <class Work>
void expect_n_log_n(Work work) {
  double few = 1e9, many = 1e9;
  for (int round = 0; round < 3; ++round) {
    few = std::min(few, work(1024));
    many = std::min(many, work(4096));
  }
  EXPECT_LT(many, most_growth * few) << few << " s of 1024 ranks, " << many << " s of 4096";
}

TEST(CheckpointScale, PartsOf4096RanksAreCollectedInTheirNumber) { expect_n_log_n(collecting); }
TEST(CheckpointScale, PartsOf4096RanksAreMergedInTheirNumber) { expect_n_log_n(merging); }

}  // namespace
}  // namespace sestina
