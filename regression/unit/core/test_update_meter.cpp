// The measures of an update against plain loops in double, from weights before and after it.
#include "core/update_meter.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/model/block_rotations.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

using namespace reference;

template <class Space>
class UpdateMeterOf : public testing::Test {};
TYPED_TEST_SUITE(UpdateMeterOf, RunSpaces, SpaceNames);

// The sum of s delta^2 of one matrix (m, n), and its shorter side.
UpdateMeasure defect_of(const Array& x) {
  const bool wide = x.rows <= x.cols;
  const std::size_t side = wide ? x.rows : x.cols, length = wide ? x.cols : x.rows;
  double trace = 0, squares = 0;
  for (std::size_t i = 0; i < side; ++i)
    for (std::size_t j = 0; j < side; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < length; ++k) sum += wide ? x(i, k) * x(j, k) : x(k, i) * x(k, j);
      squares += sum * sum;
      if (i == j) trace += sum;
    }
  UpdateMeasure measure;
  const auto s = static_cast<double>(side);
  measure.defect = s * (s * squares / (trace * trace) - 1);
  measure.sides = s;
  return measure;
}

Array rows_of(const Array& x, std::size_t begin, std::size_t end) {
  Array part(end - begin, x.cols);
  for (std::size_t i = begin; i < end; ++i)
    for (std::size_t j = 0; j < x.cols; ++j) part(i - begin, j) = x(i, j);
  return part;
}

// Weights of one tensor, which moves by `movement` after decay, and the meter over it.
template <class Space>
struct MeteredTensor {
  using Storage = Kokkos::View<float*, typename Space::memory_space>;

  MeteredTensor(std::int64_t rows, std::int64_t cols) : weight("w", static_cast<std::size_t>(rows * cols)) {
    tensor.spec.name = "model.layers.0.mlp.up_proj.weight";
    tensor.spec.rows = rows;
    tensor.spec.cols = cols;
    tensor.master = weight;
    options.kind = "muon";
    options.matrix = default_options(*find_matrix_kind("muon"));
    options.lr = 0.02;
    options.weight_decay = 0.5;
    before = random_array(1, weight.size(), 1);
    movement = random_array(static_cast<std::size_t>(rows), static_cast<std::size_t>(cols), 2, 0, 0.01);
  }
  void add_item(std::size_t row_begin, std::size_t row_end) {
    const auto cols = static_cast<std::size_t>(tensor.spec.cols);
    MatrixItem<Space> item;
    item.matrix.master = Matrix<float, Space>(weight.data() + row_begin * cols, row_end - row_begin, cols);
    item.tensor = tensor.spec.name;
    items.push_back(item);
  }
  // The update at half of the peak rates. decays(i): whether weight i decays.
  template <class Decays>
  UpdateMeasure measure(const Decays& decays) {
    set_values(weight, before);
    UpdateMeter<Space, float> meter(Space{}, {{tensor}, items, options, false, group});
    meter.before(Space{});
    Array after = before;
    for (std::size_t i = 0; i < after.values.size(); ++i)
      after.values[i] = (decays(i) ? 1 - decay : 1) * before.values[i] + movement.values[i];
    set_values(weight, after);
    meter.after(Space{}, 7, 0.5);
    for (const double value : after.values) size += value * value;
    for (const double value : movement.values) moved += value * value;
    return meter.read(Space{}).at(0);
  }
  UpdateMeasure measure() {
    return measure([](std::size_t) { return true; });
  }

  static constexpr double decay = 0.5 * 0.02 * 0.5;
  OptimizerOptions options;
  GroupOps<Space> group;
  Storage weight;
  OwnedTensor<Space, float> tensor;
  std::vector<MatrixItem<Space>> items;
  Array before, movement;
  double size = 0, moved = 0;
};

// Movements are a hundredth of the weights, whose rounding of eps shows in them as some 100 eps, and in squares as
// twice that; products in fp32 add as much.
constexpr double movement_tolerance = 1e-4;

template <class Space>
void expect_measure(const MeteredTensor<Space>& test, const UpdateMeasure& got, const UpdateMeasure& wanted) {
  EXPECT_NEAR(got.moved, test.moved, movement_tolerance * test.moved);
  EXPECT_NEAR(got.weight, test.size, movement_tolerance * test.size);
  EXPECT_NEAR(got.defect, wanted.defect, movement_tolerance * (wanted.defect + wanted.sides));
  EXPECT_EQ(got.sides, wanted.sides);
  EXPECT_NEAR(got.decay, MeteredTensor<Space>::decay, 1e-15);
}

TYPED_TEST(UpdateMeterOf, WideAndTallMatrices) {
  for (const auto& [rows, cols] : {std::pair{9, 20}, std::pair{20, 9}}) {
    MeteredTensor<TypeParam> test(rows, cols);
    test.add_item(0, static_cast<std::size_t>(rows));
    const UpdateMeasure got = test.measure();
    expect_measure(test, got, defect_of(test.movement));
  }
}

TYPED_TEST(UpdateMeterOf, ElementwiseRulesHaveNoDefect) {
  MeteredTensor<TypeParam> test(9, 20);
  const UpdateMeasure got = test.measure();
  UpdateMeasure wanted;
  wanted.defect = wanted.sides = 0;
  expect_measure(test, got, wanted);
}

TYPED_TEST(UpdateMeterOf, EachHeadIsAMatrix) {
  MeteredTensor<TypeParam> test(12, 20);
  test.add_item(0, 5);
  test.add_item(5, 12);
  const UpdateMeasure got = test.measure(), first = defect_of(rows_of(test.movement, 0, 5)),
                      second = defect_of(rows_of(test.movement, 5, 12));
  UpdateMeasure wanted;
  wanted.defect = first.defect + second.defect;
  wanted.sides = 12;
  expect_measure(test, got, wanted);
}

// A direction with equal singular values has none; one of rank 1 has sqrt(s - 1).
TYPED_TEST(UpdateMeterOf, OrthogonalAndRankOneDirections) {
  MeteredTensor<TypeParam> test(8, 16);
  test.add_item(0, 8);
  for (std::size_t i = 0; i < 8; ++i)
    for (std::size_t j = 0; j < 16; ++j) test.movement(i, j) = i == j ? 0.03 : 0;
  const UpdateMeasure orthogonal = test.measure();
  EXPECT_LT(std::sqrt(orthogonal.defect / orthogonal.sides), 1e-3);
  for (std::size_t i = 0; i < 8; ++i)
    for (std::size_t j = 0; j < 16; ++j) test.movement(i, j) = 0.001 * static_cast<double>((i + 1) * (j + 2));
  const UpdateMeasure rank_one = test.measure();
  EXPECT_NEAR(std::sqrt(rank_one.defect / rank_one.sides), std::sqrt(7.0), movement_tolerance * std::sqrt(7.0));
}

// Two packed rotations of side 5: theta_ij of Q_ij = -Q_ji, row by row.
TYPED_TEST(UpdateMeterOf, PackedRotationsAreUnpacked) {
  constexpr std::size_t b = 5, packed = skew_elements(b);
  MeteredTensor<TypeParam> test(2 * packed, 1);
  test.tensor.spec.skew_block = b;
  UpdateMeasure wanted;
  for (std::size_t block = 0; block < 2; ++block) {
    MatrixItem<TypeParam> item;
    item.matrix.master = Matrix<float, TypeParam>(test.weight.data() + block * packed, 1, packed);
    item.skew_block = b;
    item.tensor = test.tensor.spec.name;
    test.items.push_back(item);
    Array q(b, b);
    std::size_t at = block * packed;
    for (std::size_t i = 0; i < b; ++i)
      for (std::size_t j = i + 1; j < b; ++j, ++at) {
        q(i, j) = test.movement.values[at];
        q(j, i) = -test.movement.values[at];
      }
    const UpdateMeasure one = defect_of(q);
    wanted.defect += one.defect;
    wanted.sides += one.sides;
  }
  const UpdateMeasure got = test.measure();
  expect_measure(test, got, wanted);
}

// Only weights that come nearer to zero by the movement itself have decayed.
TYPED_TEST(UpdateMeterOf, CautiousDecayIsTakenOut) {
  MeteredTensor<TypeParam> test(9, 20);
  test.add_item(0, 9);
  test.options.rules.cautious = true;
  const UpdateMeasure got =
      test.measure([&](std::size_t i) { return test.movement.values[i] * test.before.values[i] < 0; });
  expect_measure(test, got, defect_of(test.movement));
}

TYPED_TEST(UpdateMeterOf, DecayFollowsItsSchedule) {
  MeteredTensor<TypeParam> test(9, 20);
  test.options.schedule.decay = UpdateSchedule::Decay::rate;
  EXPECT_NEAR(test.measure().decay, 0.5 * MeteredTensor<TypeParam>::decay, 1e-15);
}

}  // namespace
}  // namespace sestina
