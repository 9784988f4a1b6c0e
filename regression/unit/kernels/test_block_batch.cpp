// Passes over blocks of matrices and over their lines, many at once: against plain loops in double, and on hosts with
// the bits of the passes over one matrix after the other.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/optimizer/batch/rotated_batch.hpp"
#include "kernels/optimizer/batch/shampoo_batch.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina::reference {
namespace {

struct LineShape {
  std::size_t rows, cols;
};
// Longer than a piece, with more rows than are summed in one chunk; of one row, and of one column.
const std::vector<LineShape> line_shapes = {{70, 90}, {3, 5}, {1, 130}, {129, 1}};

// Matrices with eigenvalues for their lines, and two stacks.
template <class Space>
struct LinedBatch {
  using F = Field<float, Space>;
  LinedBatch() {
    std::vector<FlatMatrix> matrices;
    for (const LineShape& shape : line_shapes) {
      const auto seed = static_cast<unsigned>(10 * values.size());
      FlatMatrix one;
      moments.emplace_back(squared(random_array(shape.rows, shape.cols, seed)));
      one.second_moment = moments.back().matrix().data();
      one.rows = static_cast<std::uint32_t>(shape.rows);
      one.cols = static_cast<std::uint32_t>(shape.cols);
      one.apart = shape.cols;
      matrices.push_back(one);
      values.emplace_back(squared(random_array(1, shape.rows, seed + 1)));
      values.emplace_back(squared(random_array(1, shape.cols, seed + 2)));
    }
    batch = make_flat_batch<Space>(matrices);
    std::vector<FlatSide> two;
    for (std::size_t side = 0; side < values.size(); ++side)
      two.push_back({batch.matrices[side / 2], side % 2 == 0, values[side].matrix().data(), side == 3 ? 0.0 : 4.0});
    sides = make_flat_sides<Space>(two);
    memory = std::make_unique<F>(rounded<float>(random_array(2, batch.elements, 99)));
    stacks = {memory->matrix().data(), batch.elements};
    roots = std::make_unique<F>(std::size_t{1}, batch.lines);
    inverse_square_roots<Space>(Space(), sides, roots_of_all());
  }
  static Array squared(Array a) {
    for (double& x : a.values) x = static_cast<double>(static_cast<float>(0.125 + x * x));
    return a;
  }
  auto roots_of_all() const { return line(roots->matrix()); }
  // Matrix i of stack `number`.
  Array piece(std::size_t i, std::size_t number) const {
    const Array all = memory->get();
    Array part(line_shapes[i].rows, line_shapes[i].cols);
    const std::size_t from = number * batch.elements + batch.matrices[i].place;
    for (std::size_t e = 0; e < part.values.size(); ++e) part.values[e] = all.values[from + e];
    return part;
  }
  // x^-1/2 of the eigenvalues of a side.
  Array plain_roots(std::size_t side) const {
    Array x = values[side].get();
    for (double& value : x.values) value = 1 / std::sqrt(value);
    return x;
  }
  std::vector<F> moments, values;  // values: of each matrix the rows', the columns'
  std::unique_ptr<F> memory, roots;
  FlatBatch<Space> batch;
  FlatSides<Space> sides;
  FlatStacks stacks;
};

template <class Space>
class BlockBatches : public testing::Test {};
TYPED_TEST_SUITE(BlockBatches, StreamSpaces, SpaceNames);

TYPED_TEST(BlockBatches, TakeRootsOfAllEigenvalues) {
  const LinedBatch<TypeParam> run;
  const Array roots = run.roots->get();
  for (std::size_t side = 0; side < run.values.size(); ++side) {
    const Array want = run.plain_roots(side);
    const FlatMatrix& of = run.batch.matrices[side / 2];
    Array got(1, want.values.size());
    for (std::size_t i = 0; i < got.values.size(); ++i)
      got.values[i] = roots.values[of.line + (side % 2 == 0 ? 0 : of.rows) + i];
    expect_close(got, want, few_roundings, "roots");
  }
}

// The sums have as many terms as the other side has lines.
TYPED_TEST(BlockBatches, AverageEigenvaluesByTheirLines) {
  const LinedBatch<TypeParam> run, alone;
  average_eigenvalues<TypeParam>(TypeParam(), 0.75, run.sides, run.stacks, 1, run.roots_of_all());
  for (std::size_t i = 0; i < line_shapes.size(); ++i) {
    const auto [rows, cols] = line_shapes[i];
    const Array x = alone.piece(i, 1), left_roots = alone.plain_roots(2 * i),
                right_roots = alone.plain_roots(2 * i + 1);
    Array left = alone.values[2 * i].get(), right = alone.values[2 * i + 1].get();
    for (std::size_t side = 0; side < 2; ++side) {
      Array& want = side == 0 ? left : right;
      const double count = static_cast<double>(side == 0 ? cols : rows), least = 2 * i + side == 3 ? 0 : 1.0 / 16;
      for (std::size_t a = 0; a < want.values.size(); ++a) {
        double sum = 0;
        for (std::size_t b = 0; b < (side == 0 ? cols : rows); ++b) {
          const double term = side == 0 ? x(a, b) * right_roots.values[b] : x(b, a) * left_roots.values[b];
          sum += term * term;
        }
        want.values[a] = std::max(least, want.values[a] + 0.25 * (sum / count - want.values[a]));
      }
      expect_close(run.values[2 * i + side].get(), want, 4 * count * epsilon<float>, "eigenvalues");
    }
    const Field<float, TypeParam> x_alone(x), sums_left(std::size_t{1}, rows), sums_right(std::size_t{1}, cols),
        by_row(std::size_t{1}, rows), by_col(std::size_t{1}, cols);
    inverse_square_roots<TypeParam>(TypeParam(), line(alone.values[2 * i].read()), line(by_row.matrix()));
    inverse_square_roots<TypeParam>(TypeParam(), line(alone.values[2 * i + 1].read()), line(by_col.matrix()));
    Workspace<TypeParam> workspace(bytes_of<ColumnSquaresScratch<TypeParam>, TypeParam>(rows, cols));
    row_squares<TypeParam>(TypeParam(), x_alone.read(), line(by_col.read()), line(sums_left.matrix()));
    column_squares<TypeParam>(TypeParam(), x_alone.read(), line(by_row.read()), line(sums_right.matrix()), workspace);
    average_eigenvalues<TypeParam>(TypeParam(), 0.75, double(cols), 4, line(sums_left.read()),
                                   line(alone.values[2 * i].matrix()));
    average_eigenvalues<TypeParam>(TypeParam(), 0.75, double(rows), i == 1 ? 0 : 4, line(sums_right.read()),
                                   line(alone.values[2 * i + 1].matrix()));
    // Compilers may order the terms of a sum as they like.
    expect_close(run.values[2 * i].get(), alone.values[2 * i].get(), double(cols) * epsilon<float>, "left as alone");
    expect_close(run.values[2 * i + 1].get(), alone.values[2 * i + 1].get(), double(rows) * epsilon<float>,
                 "right as alone");
  }
}

TYPED_TEST(BlockBatches, ScaleLines) {
  const LinedBatch<TypeParam> rows_run, cols_run, damped, alone;
  scale_lines<TypeParam>(TypeParam(), true, rows_run.batch, rows_run.stacks, 0, rows_run.roots_of_all());
  scale_lines<TypeParam>(TypeParam(), false, cols_run.batch, cols_run.stacks, 0, cols_run.roots_of_all());
  scale_damped<TypeParam>(TypeParam(), 0.25, damped.batch, damped.stacks, 0, damped.roots_of_all());
  for (std::size_t i = 0; i < line_shapes.size(); ++i) {
    const Array x = alone.piece(i, 0), left = alone.plain_roots(2 * i), right = alone.plain_roots(2 * i + 1);
    Array by_row = x, by_col = x, by_both = x;
    for (std::size_t a = 0; a < x.rows; ++a)
      for (std::size_t b = 0; b < x.cols; ++b) {
        const double s = left.values[a] * right.values[b];
        by_row(a, b) *= left.values[a];
        by_col(a, b) *= right.values[b];
        by_both(a, b) *= s / (1 + 0.25 * s);
      }
    expect_close(rows_run.piece(i, 0), by_row, few_roundings, "rows");
    expect_close(cols_run.piece(i, 0), by_col, few_roundings, "columns");
    expect_close(damped.piece(i, 0), by_both, few_roundings, "both, damped");
    expect_same(rows_run.piece(i, 1), alone.piece(i, 1), "the other stack");
  }
}

TYPED_TEST(BlockBatches, TakeSecondMomentsAndDivideByThem) {
  const LinedBatch<TypeParam> run, alone;
  average_squares<TypeParam>(TypeParam(), 0.75, run.batch, run.stacks, 1);
  divide_by_root<TypeParam>(TypeParam(), 0.5, run.batch, run.stacks, 0);
  for (std::size_t i = 0; i < line_shapes.size(); ++i) {
    const Array g = alone.piece(i, 1);
    Array v = alone.moments[i].get(), d = alone.piece(i, 0);
    for (std::size_t e = 0; e < g.values.size(); ++e) {
      v.values[e] += 0.25 * (g.values[e] * g.values[e] - v.values[e]);
      d.values[e] /= std::sqrt(v.values[e]) + 0.5;
    }
    expect_close(run.moments[i].get(), v, few_roundings, "second moment");
    expect_close(run.piece(i, 0), d, few_roundings, "direction");
  }
}

// A matrix (70, 90) as four blocks, of which the first is longer than a piece, and one that is whole.
template <class Space>
struct CutBatch {
  using F = Field<float, Space>;
  static constexpr std::size_t rows = 70, cols = 90;
  CutBatch() {
    for (unsigned i = 0; i < 2; ++i) {
      gradients.emplace_back(rounded<float>(random_array(rows, cols, i)));
      momenta.emplace_back(rounded<float>(random_array(rows, cols, 10 + i)));
      moments.emplace_back(LinedBatch<Space>::squared(random_array(rows, cols, 20 + i)));
      masters.emplace_back(rounded<float>(random_array(rows, cols, 30 + i)));
      weights.emplace_back(rows, cols);
    }
    std::vector<FlatMatrix> blocks;
    for (std::size_t i = 0; i < 2; ++i) {
      FlatMatrix whole;
      whole.gradient = gradients[i].matrix().data();
      whole.momentum = momenta[i].matrix().data();
      whole.second_moment = moments[i].matrix().data();
      whole.master = masters[i].matrix().data();
      whole.weight = i == 0 ? weights[i].matrix().data() : nullptr;
      whole.lr = 0.5 + double(i);
      whole.weight_decay = 0.25;
      whole.apart = cols;
      if (i == 1) blocks.push_back(block_of(whole, 0, 0, rows, cols));
      for (const std::size_t row : {0, 64})
        for (const std::size_t col : {0, 80})
          if (i == 0) blocks.push_back(block_of(whole, row, col, row == 0 ? 64 : 6, col == 0 ? 80 : 10));
    }
    batch = make_flat_batch<Space>(blocks);
    memory = std::make_unique<F>(rounded<float>(random_array(2, batch.elements, 99)));
    stacks = {memory->matrix().data(), batch.elements};
  }
  // What matrix i has in stack `number`, put together from its blocks.
  Array piece(std::size_t i, std::size_t number) const {
    const Array all = memory->get();
    Array whole(rows, cols);
    for (const FlatMatrix& block : batch.matrices) {
      if ((block.number == 4) != (i == 1)) continue;
      const std::size_t begin = static_cast<std::size_t>(block.gradient - gradients[i].matrix().data());
      for (std::size_t e = 0; e < block.elements; ++e)
        whole.values[begin + block.at(e)] = all.values[number * batch.elements + block.place + e];
    }
    return whole;
  }
  std::vector<F> gradients, momenta, moments, masters;
  std::vector<Field<bf16, Space>> weights;
  std::unique_ptr<F> memory;
  FlatBatch<Space> batch;
  FlatStacks stacks;
};

const FilterRule some_filter{.gradient = 0.5f,
                             .learn1 = 0.25f,
                             .learn3 = 0.125f,
                             .inv_bias1 = 1.5f,
                             .second_moment = true,
                             .forget = 0.0625f,
                             .gain = 0.125f,
                             .inv_bias2 = 2,
                             .eps = 0.25f};

TYPED_TEST(BlockBatches, FilterGradientsOfBlocks) {
  const CutBatch<TypeParam> run, alone;
  filter<TypeParam>(TypeParam(), some_filter, run.batch, run.stacks, 0, 1);
  for (std::size_t i = 0; i < 2; ++i) {
    const Array gradient = alone.gradients[i].get();
    Array f = alone.momenta[i].get(), v = alone.moments[i].get(), filtered = f, graft = f;
    for (std::size_t e = 0; e < f.values.size(); ++e) {
      const double g = 0.5 * gradient.values[e];
      filtered.values[e] = 1.5 * (f.values[e] + 0.125 * (g - f.values[e]));
      f.values[e] += 0.25 * (g - f.values[e]);
      v.values[e] += 0.125 * g * g - 0.0625 * v.values[e];
      graft.values[e] = filtered.values[e] / (std::sqrt(2 * v.values[e]) + 0.25);
    }
    expect_close(run.momenta[i].get(), f, few_roundings, "momentum");
    expect_close(run.moments[i].get(), v, few_roundings, "second moment");
    expect_close(run.piece(i, 0), filtered, few_roundings, "filtered");
    expect_close(run.piece(i, 1), graft, few_roundings, "graft");
    const Field<float, TypeParam> own_filtered(CutBatch<TypeParam>::rows, CutBatch<TypeParam>::cols),
        own_graft(CutBatch<TypeParam>::rows, CutBatch<TypeParam>::cols);
    filter<TypeParam>(TypeParam(), some_filter,
                      FilterData<TypeParam>{alone.gradients[i].read(), alone.momenta[i].matrix(),
                                            alone.moments[i].matrix(), own_filtered.matrix(), own_graft.matrix()});
    expect_both<TypeParam>(run.piece(i, 0), own_filtered.get(), "filtered as alone");
    expect_both<TypeParam>(run.piece(i, 1), own_graft.get(), "graft as alone");
  }
}

TYPED_TEST(BlockBatches, GiveDirectionsTheSizeOfTheirGrafts) {
  const CutBatch<TypeParam> run, before;
  Workspace<TypeParam> workspace(bytes_of<GraftScratch<TypeParam>, TypeParam>(run.batch.pieces, std::size_t{5}));
  const GraftScratch<TypeParam> scratch(workspace, run.batch.pieces, 5);
  squares_of_stack<TypeParam>(TypeParam(), run.batch, run.stacks, 1, scratch.graft);
  squares_of_stack<TypeParam>(TypeParam(), run.batch, run.stacks, 0, scratch.direction);
  make_graft_factors<TypeParam>(TypeParam(), run.batch, scratch);
  const Kokkos::View<double*, typename TypeParam::memory_space> flag("flag", 1);
  const WeightMove move{0.5, 1, 0.5, true, flag.data()};
  move_weights<TypeParam>(TypeParam(), move, run.batch, run.stacks, scratch.factors);
  const Array stacks = before.memory->get();
  for (const FlatMatrix& block : before.batch.matrices) {
    double squares[2] = {};
    for (std::size_t stack = 0; stack < 2; ++stack)
      for (std::size_t e = 0; e < block.elements; ++e) {
        const double x = stacks.values[stack * before.batch.elements + block.place + e];
        squares[stack] += x * x;
      }
    const double factor = std::sqrt(squares[1] / squares[0]);
    const std::size_t i = block.number == 4 ? 1 : 0;
    const std::size_t begin = static_cast<std::size_t>(block.gradient - before.gradients[i].matrix().data());
    const Array old = before.masters[i].get(), now = run.masters[i].get();
    Array want(1, block.elements), got(1, block.elements);
    for (std::size_t e = 0; e < block.elements; ++e) {
      const double direction = stacks.values[block.place + e], lr = 0.5 * block.lr;
      want.values[e] = (1 - lr * 0.125) * old.values[begin + block.at(e)] - lr * factor * direction;
      got.values[e] = now.values[begin + block.at(e)];
    }
    expect_close(got, want, few_roundings, "weight");
  }
  expect_same(run.weights[0].get(), rounded<bf16>(run.masters[0].get()), "rounded");
  EXPECT_EQ(values_of(flag).values[0], 0);
}

}  // namespace
}  // namespace sestina::reference
