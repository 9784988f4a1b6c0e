// Values that are not finite: found in fields, snapshots and checkpoints, and named.
#include "io/store/finite.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "io/checkpoint/checkpoint.hpp"
#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

StateField field_of(std::vector<float>& values, const std::string& path = "/model/w") {
  return {path,
          DType::f32,
          {static_cast<std::int64_t>(values.size()) / 4, 4},
          0,
          static_cast<std::int64_t>(values.size()) / 4,
          0,
          0,
          values.data()};
}

TEST(Finite, FindsTheFirstInEveryType) {
  for (const std::size_t n : {1, 7, 4096, 4097, 70000})
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      std::vector<float> f32(n, std::numeric_limits<float>::max());
      std::vector<double> f64(n, std::numeric_limits<double>::denorm_min());
      std::vector<std::uint16_t> bf16(n, 0x7f7f);  // the largest
      EXPECT_FALSE(first_nonfinite(DType::f32, f32.data(), 4 * n));
      EXPECT_FALSE(first_nonfinite(DType::f64, f64.data(), 8 * n));
      EXPECT_FALSE(first_nonfinite(DType::bf16, bf16.data(), 2 * n));
      f32[at] = -inf;
      f64[at] = std::nan("");
      bf16[at] = 0xff80;
      f32[n - 1] = f32[at];
      EXPECT_EQ(first_nonfinite(DType::f32, f32.data(), 4 * n), at);
      EXPECT_EQ(first_nonfinite(DType::f64, f64.data(), 8 * n), at);
      EXPECT_EQ(first_nonfinite(DType::bf16, bf16.data(), 2 * n), at);
      EXPECT_FALSE(first_nonfinite(DType::u32, f32.data(), 4 * n));
    }
}

TEST(Finite, NamesTensorAndPlace) {
  std::vector<float> values(24, 1.0f);
  values[10] = -inf;
  StateField slab = field_of(values);
  slab.row_begin = 6;
  slab.row_end = 12;
  slab.shape = {20, 9};
  slab.col_begin = 5;
  slab.col_end = 9;
  try {
    require_finite(slab, values.data(), ExitCode::diverged, "here");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::diverged);
    EXPECT_STREQ(error.what(), "here: /model/w holds a value that is not finite (-inf at row 8, column 7)");
  }
}

// Longer than the pieces in which fields are copied; of both places where a field may lie.
TEST(Finite, ASnapshotSaysSo) {
  std::vector<float> good(8, 1.0f), bad(200000, 2.0f);
  bad[150001] = std::nanf("");
  for (const bool on_device : {false, true}) {
    std::vector<StateField> fields = {field_of(good), field_of(bad, "/optimizer/w/momentum")};
    fields[1].on_device = on_device;
    Snapshot snapshot;
    const auto copy = [](const StateField& field, void* to) { std::memcpy(to, field.data, field.bytes()); };
    take_snapshot(fields, {}, copy, snapshot);
    EXPECT_EQ(snapshot.problem, "/optimizer/w/momentum holds a value that is not finite (nan at row 37500, column 1)");
    take_snapshot({fields[0]}, {}, copy, snapshot);
    EXPECT_EQ(snapshot.problem, "");
  }
}

TEST(Finite, ACheckpointThatIsNotIsPassedOver) {
  const test::TemporaryFolder folder;
  std::vector<float> values(600000, 1.0f);  // more than one chunk of a file
  CheckpointWriter writer(folder.path(), CheckpointOptions{});
  for (const std::int64_t step : {1, 2}) {
    RunState run;
    run.step = step;
    if (step == 2) values[599999] = inf;
    take_snapshot({field_of(values)}, run, {}, writer.slot());
    writer.save();
  }
  writer.wait();
  std::vector<std::string> lines;
  const auto warn = [&](const std::string& line) { lines.push_back(line); };
  EXPECT_EQ(std::filesystem::path(newest_complete(folder.path(), false, warn)).filename(), "step_00000002");
  EXPECT_TRUE(lines.empty());
  EXPECT_EQ(std::filesystem::path(newest_complete(folder.path(), false, warn, {}, true)).filename(), "step_00000001");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("/model/w holds a value that is not finite (inf at row 149999, column 3)"), std::string::npos)
      << lines[0];
}

}  // namespace
}  // namespace sestina
