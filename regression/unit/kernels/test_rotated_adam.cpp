// Element-wise passes of rotated and low-rank Adam, sums of squares along lines, and APOLLO's factors, against plain
// loops in double. Tolerances: a few roundings of fp32 each, relative to the value or to the root mean square.
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina::reference {
namespace {

struct Shape {
  std::size_t rows, cols;
};
// The larger ones are longer than what one thread takes at a time.
constexpr Shape rotated_shapes[] = {{1, 1}, {1, 33}, {70, 1}, {13, 17}, {67, 515}, {0, 5}, {5, 0}};

template <class Exec>
class RotatedAdam : public testing::Test {};
TYPED_TEST_SUITE(RotatedAdam, StreamSpaces, SpaceNames);

// A matrix of floats as these kernels see it: all of it as one vector.
template <class Exec>
struct Flat : Field<float, Exec> {
  using Field<float, Exec>::Field;
  Vector<float, Exec> all() const { return Vector<float, Exec>(this->matrix().data(), this->matrix().size()); }
};

Array random_floats(Shape s, unsigned seed) { return rounded<float>(random_array(s.rows, s.cols, seed)); }
Array squares_of(Array a) {
  for (double& x : a.values) x = static_cast<double>(static_cast<float>(x * x));
  return a;
}

TYPED_TEST(RotatedAdam, AveragesAndDirections) {
  for (const Shape s : rotated_shapes) {
    const Array g = random_floats(s, 1), m0 = random_floats(s, 2), v0 = squares_of(random_floats(s, 3));
    const AdamRule rule{0.9, 0.75, 1e-3};
    const double scale = 0.25;
    Array m = m0, v = v0, direction(s.rows, s.cols), v_raw = v0, rotated = m0;
    for (std::size_t i = 0; i < g.values.size(); ++i) {
      const double x = scale * g.values[i];
      m.values[i] += 0.1 * (x - m0.values[i]);
      v.values[i] += 0.25 * (x * x - v0.values[i]);
      direction.values[i] = m.values[i] / (std::sqrt(v.values[i]) + 1e-3);
      v_raw.values[i] += 0.25 * (g.values[i] * g.values[i] - v0.values[i]);
      rotated.values[i] = m0.values[i] / (std::sqrt(v_raw.values[i]) + 1e-3);
    }
    const TypeParam exec;
    const Flat<TypeParam> gradient(g), momentum(m0), moment(v0), out(s.rows, s.cols);
    adam_direction<TypeParam>(exec, rule, scale, gradient.all(), momentum.all(), moment.all(), out.all());
    expect_close(momentum.get(), m, few_roundings, "momentum");
    expect_close(moment.get(), v, few_roundings, "second moment");
    expect_close(out.get(), direction, few_roundings, "direction");

    const Flat<TypeParam> alone(m0), fused_v(v0), fused(m0), half_v(v0), half(m0);
    average_momentum<TypeParam>(exec, rule.beta1, scale, gradient.all(), alone.all());
    expect_close(alone.get(), m, few_roundings, "momentum alone");
    rotated_adam<TypeParam>(exec, rule, gradient.all(), fused_v.all(), fused.all());
    average_squares<TypeParam>(exec, rule.beta2, gradient.all(), half_v.all());
    divide_by_root<TypeParam>(exec, rule.eps, half_v.all(), half.all());
    for (const auto* x : {&fused_v, &half_v}) expect_close(x->get(), v_raw, few_roundings, "second moment in a basis");
    for (const auto* x : {&fused, &half}) expect_close(x->get(), rotated, few_roundings, "direction in a basis");
  }
}

TYPED_TEST(RotatedAdam, ScalesLines) {
  for (const Shape s : rotated_shapes) {
    const Array x = random_floats(s, 4), by_row = squares_of(random_floats({1, s.rows}, 5)),
                by_col = squares_of(random_floats({1, s.cols}, 6));
    Array both = x, rows = x, cols = x, damped = x;
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        const double factor = by_row(0, i) * by_col(0, j);
        both(i, j) *= factor;
        rows(i, j) *= by_row(0, i);
        cols(i, j) *= by_col(0, j);
        damped(i, j) *= factor / (1 + 0.5 * factor);
      }
    const TypeParam exec;
    const Flat<TypeParam> r(by_row), c(by_col), a(x), b(x), d(x), e(x);
    scale_lines<TypeParam>(exec, r.all(), c.all(), a.matrix());
    scale_lines<TypeParam>(exec, r.all(), {}, b.matrix());
    scale_lines<TypeParam>(exec, {}, c.all(), d.matrix());
    scale_damped<TypeParam>(exec, 0.5, r.all(), c.all(), e.matrix());
    expect_close(a.get(), both, few_roundings, "rows and columns");
    expect_close(b.get(), rows, few_roundings, "rows");
    expect_close(d.get(), cols, few_roundings, "columns");
    expect_close(e.get(), damped, few_roundings, "damped");
  }
}

std::vector<int> reversed(std::size_t n) {
  std::vector<int> order(n);
  std::iota(order.rbegin(), order.rend(), 0);
  if (n > 2) std::swap(order[0], order[1]);
  return order;
}

TYPED_TEST(RotatedAdam, Permutes) {
  for (const Shape s : rotated_shapes) {
    const Array x = random_floats(s, 7);
    const std::vector<int> by_row = reversed(s.rows), by_col = reversed(s.cols);
    Array both = x, rows = x, cols = x;
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        const auto from_row = static_cast<std::size_t>(by_row[i]), from_col = static_cast<std::size_t>(by_col[j]);
        both(i, j) = x(from_row, from_col);
        rows(i, j) = x(from_row, j);
        cols(i, j) = x(i, from_col);
      }
    const TypeParam exec;
    const Indices<TypeParam> r(by_row), c(by_col);
    const Flat<TypeParam> a(x), b(x), d(x), scratch(s.rows, s.cols);
    permute<TypeParam>(exec, r.vector(), c.vector(), a.matrix(), scratch.matrix());
    expect_same(a.get(), both, "both axes");
    permute<TypeParam>(exec, r.vector(), {}, b.matrix(), scratch.matrix());
    expect_same(b.get(), rows, "rows");
    permute<TypeParam>(exec, {}, c.vector(), d.matrix(), scratch.matrix());
    expect_same(d.get(), cols, "columns");
  }
}

TYPED_TEST(RotatedAdam, AveragesAndClampsEigenvalues) {
  const Array values(1, 4, 0.5);
  Array sample(1, 4);
  sample.values = {8, 0, 0.4, 1e30};
  const TypeParam exec;
  const Flat<TypeParam> got(values), free(values), given(sample);
  average_eigenvalues<TypeParam>(exec, 0.5, 4, 2, given.all(), got.all());  // inverse root at most 2: at least 1/4
  average_eigenvalues<TypeParam>(exec, 0.5, 4, 0, given.all(), free.all());
  Array want(1, 4), unclamped(1, 4);
  want.values = {1.25, 0.25, 0.3, 1.25e29};
  unclamped.values = {1.25, 0.25, 0.3, 1.25e29};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(got.get().values[i], want.values[i], few_roundings * want.values[i]);
    EXPECT_NEAR(free.get().values[i], unclamped.values[i], few_roundings * unclamped.values[i]);
  }
  average_eigenvalues<TypeParam>(exec, 0.5, 4, 2, Flat<TypeParam>(Array(1, 4, 0)).all(), got.all());
  EXPECT_EQ(got.get().values[1], 0.25);  // a floor, not a view: .125 would lie below
  const Flat<TypeParam> roots(1, 4);
  Array odd(1, 4);
  odd.values = {4, 0, -1, std::numeric_limits<double>::infinity()};
  inverse_square_roots<TypeParam>(exec, Flat<TypeParam>(odd).all(), roots.all());
  Array of_odd(1, 4);
  of_odd.values = {0.5, 0, 0, 0};
  expect_same(roots.get(), of_odd, "inverse roots");
}

TYPED_TEST(RotatedAdam, SumsSquaresAlongLines) {
  for (const Shape s : rotated_shapes) {
    const Array x = random_floats(s, 8), by_row = random_floats({1, s.rows}, 9),
                by_col = random_floats({1, s.cols}, 10);
    Array rows(1, s.rows), cols(1, s.cols), plain_rows(1, s.rows), plain_cols(1, s.cols);
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        rows(0, i) += std::pow(x(i, j) * by_col(0, j), 2);
        cols(0, j) += std::pow(x(i, j) * by_row(0, i), 2);
        plain_rows(0, i) += std::pow(x(i, j), 2);
        plain_cols(0, j) += std::pow(x(i, j), 2);
      }
    const TypeParam exec;
    Workspace<TypeParam> workspace(bytes_of<ColumnSquaresScratch<TypeParam>, TypeParam>(s.rows, s.cols));
    const Flat<TypeParam> a(x), r(by_row), c(by_col), out_rows(1, s.rows), out_cols(1, s.cols);
    const double tolerance = few_roundings * std::sqrt(1.0 + static_cast<double>(s.rows + s.cols));
    row_squares<TypeParam>(exec, a.matrix(), c.all(), out_rows.all());
    column_squares<TypeParam>(exec, a.matrix(), r.all(), out_cols.all(), workspace);
    expect_close(out_rows.get(), rows, tolerance, "weighted rows");
    expect_close(out_cols.get(), cols, tolerance, "weighted columns");
    row_squares<TypeParam>(exec, a.matrix(), {}, out_rows.all());
    column_squares<TypeParam>(exec, a.matrix(), {}, out_cols.all(), workspace);
    expect_close(out_rows.get(), plain_rows, tolerance, "rows");
    expect_close(out_cols.get(), plain_cols, tolerance, "columns");
    EXPECT_EQ(workspace.peak(), workspace.capacity());
  }
}

TYPED_TEST(RotatedAdam, CopiesColumns) {
  const TypeParam exec;
  const Array x = random_floats({3, 2}, 11);
  const Flat<TypeParam> from(x), square(3, 3), turned(2, 3), unit(3, 3);
  gather_columns<TypeParam>(exec, from.matrix(), Indices<TypeParam>({1, 0}).vector(), square.matrix());
  copy_matrix<TypeParam>(exec, true, from.matrix(), turned.matrix());
  set_identity<TypeParam>(exec, unit.matrix());
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 3; ++j) {
      EXPECT_EQ(square.get()(i, j), j < 2 ? x(i, 1 - j) : 0);
      EXPECT_EQ(unit.get()(i, j), i == j ? 1 : 0);
      if (j < 2) EXPECT_EQ(turned.get()(j, i), x(i, j));
    }
  const Array basis = random_floats({5, 5}, 12);
  const Flat<TypeParam> whole(basis), columns(5, 2), rows(2, 5);
  leading_columns<TypeParam>(exec, whole.matrix(), false, columns.matrix());
  leading_columns<TypeParam>(exec, whole.matrix(), true, rows.matrix());
  for (std::size_t i = 0; i < 5; ++i)
    for (std::size_t j = 0; j < 2; ++j) {
      EXPECT_EQ(columns.get()(i, j), basis(i, j));
      EXPECT_EQ(rows.get()(j, i), basis(i, j));
    }
}

// The rule of channel_factors, in double.
struct PlainChannels {
  Array factors;
  double norm;
};
PlainChannels plain_channels(const ChannelRule& rule, const Array& a, const Array& r, const Array& g, double last) {
  const auto sum = [](const Array& x) { return std::accumulate(x.values.begin(), x.values.end(), 0.0); };
  PlainChannels out{Array(1, g.cols), 0};
  for (std::size_t i = 0; i < g.cols; ++i) {
    const double up = rule.per_tensor ? sum(a) : a(0, i), down = rule.per_tensor ? sum(r) : r(0, i);
    out.factors(0, i) = std::sqrt(up) / (std::sqrt(down) + rule.norm_eps);
    out.norm += std::pow(out.factors(0, i) * rule.gradient_scale, 2) * g(0, i);
  }
  out.norm = std::sqrt(out.norm) * (rule.scale_front ? std::sqrt(rule.scale) : 1);
  double limit = 1;
  if (rule.limited && rule.growth_limit > 0)
    limit = std::max(out.norm / (last + rule.norm_eps), rule.growth_limit) / rule.growth_limit;
  out.norm /= limit;
  for (double& f : out.factors.values) f *= rule.gradient_scale * std::sqrt(rule.scale) / limit;
  return out;
}

TYPED_TEST(RotatedAdam, ChannelFactors) {
  for (const bool tensor : {false, true})
    for (const bool front : {false, true})
      for (const double last : {1e-6, 3.0, 1e6})
        for (const bool limited : {false, true}) {
          const ChannelRule rule{0.5, 16, front, tensor, 1e-8, 1.01, limited};
          const Array a = squares_of(random_floats({1, 37}, 13)), r = squares_of(random_floats({1, 37}, 14)),
                      g = squares_of(random_floats({1, 37}, 15));
          const PlainChannels want = plain_channels(rule, a, r, g, static_cast<float>(last));
          const Flat<TypeParam> direction(a), projected(r), gradient(g), norm(Array(1, 1, last)), factors(1, 37);
          channel_factors<TypeParam>(TypeParam(), rule, direction.all(), projected.all(), gradient.all(), norm.all(),
                                     factors.all());
          expect_close(factors.get(), want.factors, few_roundings, "factors");
          EXPECT_NEAR(norm.get().values[0], want.norm, few_roundings * want.norm);
        }
}

TYPED_TEST(RotatedAdam, MovesChannels) {
  const Shape s{13, 17};
  for (const bool by_row : {true, false})
    for (const bool decay_first : {true, false}) {
      const Array g = random_floats(s, 16), w = random_floats(s, 17),
                  f = random_floats({1, by_row ? s.rows : s.cols}, 18);
      const WeightMove move{0.125, 3, 0.5, decay_first};
      Array want = w;
      for (std::size_t i = 0; i < s.rows; ++i)
        for (std::size_t j = 0; j < s.cols; ++j) {
          const double step = 0.375 * f(0, by_row ? i : j) * g(i, j), keep = 1 - 0.125 * 0.5;
          want(i, j) = decay_first ? keep * w(i, j) - step : keep * (w(i, j) - step);
        }
      const Flat<TypeParam> gradient(g), master(w), factors(f);
      const Field<bf16, TypeParam> weight(s.rows, s.cols);
      move_channels<TypeParam>(TypeParam(), move, by_row, factors.all(), gradient.matrix(), master.matrix(),
                               weight.matrix());
      expect_close(master.get(), want, few_roundings, "weight");
      expect_same(weight.get(), rounded<bf16>(master.get()), "rounded weight");
    }
}

TYPED_TEST(RotatedAdam, RefusesWhatDoesNotFit) {
  const TypeParam exec;
  const Flat<TypeParam> a(3, 4), b(1, 5);
  EXPECT_THROW(average_momentum<TypeParam>(exec, 0.9, 1, a.all(), b.all()), Error);
  EXPECT_THROW(scale_lines<TypeParam>(exec, b.all(), {}, a.matrix()), Error);
  EXPECT_THROW(row_squares<TypeParam>(exec, a.matrix(), {}, b.all()), Error);
}

}  // namespace
}  // namespace sestina::reference
