// The speed of the machine next to its record: what is called slow, and the file of the record.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "app/watch/speed_check.hpp"
#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

RankSpeed rank_speed(double memory, double record) {
  RankSpeed rank{"node", {0, 1, memory, 0}, {}};
  rank.record.memory_gbs = record;
  return rank;
}

TEST(SpeedCheck, NamesWhatIsBelowItsRecordOrTheMedian) {
  EXPECT_TRUE(slow_lines({rank_speed(80, 0)}).empty()) << "nothing to compare with";
  EXPECT_TRUE(slow_lines({rank_speed(71, 100)}).empty());
  EXPECT_EQ(slow_lines({rank_speed(69, 100)}),
            std::vector<std::string>{"rank 0 on node: memory 69 GB/s, 69 % of the node's record of 100 GB/s"});
  EXPECT_EQ(slow_lines({rank_speed(80, 0), rank_speed(80, 100), rank_speed(40, 50)}),
            std::vector<std::string>{"rank 2 on node: memory 40 GB/s, 50 % of the ranks' median of 80 GB/s"});
}

TEST(SpeedCheck, RecordOfEachSetUpIsRaisedAlone) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "cache/node.json";
  EXPECT_EQ(read_record(file, "host").memory_gbs, 0);
  ASSERT_TRUE(raise_record(file, "host", {0, 1, 50, 0}));
  ASSERT_TRUE(raise_record(file, "host", {0, 2, 40, 0}));
  ASSERT_TRUE(raise_record(file, "device", {0, 9, 900, 0}));
  const Speed best = read_record(file, "host");
  EXPECT_EQ(best.fp32_tflops, 2);
  EXPECT_EQ(best.memory_gbs, 50);
  EXPECT_EQ(read_record(file, "device").memory_gbs, 900);
}

TEST(SpeedCheck, AFileOfOthersHasNoRecord) {
  const test::TemporaryFolder folder;
  for (const char* text : {"", "[1, 2]", "{\"host\": 3}", "not JSON"}) {
    const std::string file = folder / "node.json";
    std::ofstream(file) << text;
    EXPECT_EQ(read_record(file, "host").memory_gbs, 0) << text;
    EXPECT_TRUE(raise_record(file, "host", {0, 1, 50, 0}));
    EXPECT_EQ(read_record(file, "host").memory_gbs, 50) << text;
  }
  EXPECT_FALSE(raise_record("/dev/null/speed.json", "host", {}));
}

}  // namespace
}  // namespace sestina
