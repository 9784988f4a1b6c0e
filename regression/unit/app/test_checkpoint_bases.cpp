// Bases of an optimizer read back as rotations: which tensors have one, where they lie, and what is refused.
#include <gtest/gtest.h>

#include <cmath>

#include "app/experiments/checkpoint_bases.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

using Values = std::vector<float>;

Values rotation(double angle) {
  const auto c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
  return {c, -s, s, c};
}

// A checkpoint with these square fields of 2 x 2, and the bases that are found for two matrices, which are updated by
// heads and blocks of at most 2 x 2, and a vector.
std::vector<RotatedCoordinates> bases_of(std::vector<std::pair<std::string, Values>> squares,
                                         std::int64_t down_cols = 2) {
  const test::TemporaryFolder folder;
  {
    CheckpointWriter writer(folder.path(), CheckpointOptions());
    std::vector<StateField> fields;
    for (auto& [name, values] : squares) {
      StateField field;
      field.path = "/optimizer/" + name;
      field.shape = {2, 2};
      field.row_end = 2;
      field.data = values.data();
      fields.push_back(field);
    }
    RunState run;
    run.step = 1;
    take_snapshot(fields, run, {}, writer.slot());
    writer.save();
    writer.wait();
  }
  const CheckpointReader reader(find_checkpoint(folder.path(), [](const std::string&) {}), false);
  OptimizerOptions optimizer;
  optimizer.kind = "soap";
  optimizer.per_head = true;
  optimizer.matrix = default_options(*find_matrix_kind("soap"));
  optimizer.matrix->set("max_dim", 2);
  TensorSpec norm, first, second;
  norm.name = "norm.weight", norm.rows = 3, norm.cols = 1, norm.role = Role::vector;
  first.name = "q.weight", first.rows = 4, first.cols = 2, first.role = Role::matrix, first.heads = 2;
  second.name = "down.weight", second.rows = 2, second.cols = down_cols, second.role = Role::matrix;
  return read_bases(reader, {norm, first, second}, optimizer);
}

TEST(CheckpointBases, LieWhereTheirMatricesDo) {
  const std::vector<RotatedCoordinates> found = bases_of({{"q.weight/head_01/basis_left", rotation(0.3)},
                                                          {"q.weight/head_00/basis_right", rotation(0.4)},
                                                          {"down.weight/basis_left", rotation(0.5)},
                                                          {"down.weight/basis_right", Values(4, 0)}});  // not begun
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].begin, 3u);  // after the vector
  EXPECT_TRUE(found[0].left.empty());
  EXPECT_EQ(found[0].right.size(), 4u);
  EXPECT_EQ(found[1].begin, 7u);  // the second head
  EXPECT_EQ(found[1].rows, 2u);
  EXPECT_EQ(found[2].begin, 11u);
  EXPECT_TRUE(found[2].right.empty());
  EXPECT_FLOAT_EQ(static_cast<float>(found[2].left[2]), rotation(0.5)[2]);
}

TEST(CheckpointBases, OfBlocksLieInLongerRows) {
  const std::vector<RotatedCoordinates> found = bases_of(
      {{"down.weight/block_00_00/basis_left", rotation(0.5)}, {"down.weight/block_00_02/basis_left", rotation(0.3)}},
      5);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].begin, 11u);
  EXPECT_EQ(found[1].begin, 15u);
  EXPECT_EQ(found[1].rows, 2u);
  EXPECT_EQ(found[1].cols, 1u);
  EXPECT_EQ(found[1].row_stride, 5u);
}

TEST(CheckpointBases, AreNothingWithoutState) { EXPECT_TRUE(bases_of({{"other/basis_left", rotation(1)}}).empty()); }

TEST(CheckpointBases, MustBeOrthogonal) {
  for (const Values& wrong : {Values{1, 0, 1, 0}, Values{2, 0, 0, 1}, Values{1, 0, 0, std::nanf("")}}) {
    try {
      bases_of({{"down.weight/basis_right", wrong}});
      FAIL() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_NE(std::string(error.what()).find("/optimizer/down.weight/basis_right"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace sestina
