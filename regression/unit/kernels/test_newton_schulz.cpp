// Newton-Schulz iteration against the loops of newton_schulz_step.hpp, what must hold of it exactly, and the passes
// around it. What each published set does to singular values is tested with the sets (core/test_muon.cpp).
#include "kernels/optimizer/newton_schulz.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/base/error.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "regression/unit/kernels/plain_newton_schulz.hpp"
#include "regression/unit/linear_algebra.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

using reference::Array;
using reference::cubic_step;
using reference::Field;
using reference::newton_schulz_sample;
using reference::plain_newton_schulz;
using reference::simple_step;

const std::vector<NewtonSchulzStep> five(5, simple_step);

template <class Exec>
Array orthogonalized(const Array& x, const NewtonSchulz& ns, bool in_bf16 = false, const Exec& exec = Exec()) {
  Gemm<Exec> gemm(exec, true);
  Workspace<Exec> workspace(
      bytes_taken<Exec>([&](auto& counter) { declare_orthogonalize<Exec>(counter, x.rows, x.cols); }));
  const Field<float, Exec> in(x), out(x.rows, x.cols);
  orthogonalize<Exec>(exec, gemm, workspace, ns, in_bf16, in.read(), out.matrix());
  if (!in_bf16 && x.values.size() > 0) EXPECT_EQ(workspace.peak(), workspace.capacity());
  return out.get();
}

template <class Exec>
class NewtonSchulzTest : public testing::Test {
 protected:
  static Array run(const Array& x, const NewtonSchulz& ns, bool in_bf16 = false) {
    return orthogonalized<Exec>(x, ns, in_bf16);
  }
};
TYPED_TEST_SUITE(NewtonSchulzTest, reference::StreamSpaces, reference::SpaceNames);

double cosine(const Array& a, const Array& b) {
  return reference::inner(a, b) / std::sqrt(reference::inner(a, a) * reference::inner(b, b));
}

// Each step sums s + l products per element and amplifies what came before by its slope, at most 3.4445 near 0; the
// last steps work on singular values near 1, where the slope is below 1 in size. 30 roundings per summed term are
// ample.
double tolerance(const Array& x) { return 30 * double(x.rows + x.cols) * std::numeric_limits<float>::epsilon(); }

constexpr std::size_t shapes[][2] = {{1, 1},  {1, 33},  {33, 1},   {2, 2},     {7, 33},
                                     {33, 7}, {64, 64}, {129, 70}, {150, 193}, {40, 300}};

TYPED_TEST(NewtonSchulzTest, MatchesPlainLoops) {
  for (const auto& [rows, cols] : shapes)
    for (const NewtonSchulzNorm norm : {NewtonSchulzNorm::max, NewtonSchulzNorm::add}) {
      const Array x = newton_schulz_sample(rows, cols);
      const NewtonSchulz ns = {five, 0.5, norm};
      SCOPED_TRACE(testing::Message() << rows << " x " << cols);
      reference::expect_close(this->run(x, ns), plain_newton_schulz(x, ns), tolerance(x), "quintic");
    }
}

TYPED_TEST(NewtonSchulzTest, CubicStepsSkipTheSquare) {
  const std::vector<NewtonSchulzStep> steps = {cubic_step, cubic_step, simple_step, cubic_step};
  for (const auto& [rows, cols] : shapes) {
    const Array x = newton_schulz_sample(rows, cols);
    reference::expect_close(this->run(x, {steps}), plain_newton_schulz(x, {steps}), tolerance(x), "cubic");
  }
}

// A matrix of norm below eps is shrunk instead of normalised; the published eps of 1e-15 must reach fp32 numbers.
TYPED_TEST(NewtonSchulzTest, SmallMatrices) {
  for (const double size : {1e-7, 1e-15, 1e-30})
    for (const double eps : {1e-7, 1e-15}) {
      Array x = newton_schulz_sample(9, 14);
      for (double& value : x.values) value *= size;
      x = reference::rounded<float>(x);
      const NewtonSchulz ns = {five, eps};
      reference::expect_close(this->run(x, ns), plain_newton_schulz(x, ns), tolerance(x), "small");
    }
}

TYPED_TEST(NewtonSchulzTest, ZeroGivesZero) {
  for (const bool in_bf16 : {false, true})
    for (const double eps : {1e-7, 0.0})
      for (const NewtonSchulzNorm norm : {NewtonSchulzNorm::max, NewtonSchulzNorm::add})
        reference::expect_same(this->run(Array(12, 40), {five, eps, norm}, in_bf16), Array(12, 40), "of zero");
  this->run(Array(0, 5), {five});
  this->run(Array(5, 0), {five});
}

TYPED_TEST(NewtonSchulzTest, NanIsNotHidden) {
  Array x = newton_schulz_sample(8, 12);
  x(3, 4) = std::numeric_limits<double>::quiet_NaN();
  const Array y = this->run(x, {five});
  for (const double value : y.values) ASSERT_TRUE(std::isnan(value));
}

// Zero rows stay zero, and what is added to the shape of a matrix as zeros changes nothing else but rounding.
TYPED_TEST(NewtonSchulzTest, PaddingStaysZero) {
  Array x = newton_schulz_sample(20, 30);
  for (std::size_t j = 0; j < x.cols; ++j) x(7, j) = x(19, j) = 0;
  const Array y = this->run(x, {five});
  for (std::size_t j = 0; j < x.cols; ++j) {
    ASSERT_EQ(y(7, j), 0);
    ASSERT_EQ(y(19, j), 0);
  }
}

// A tall matrix is worked on as its transpose: the bits are those of the transpose.
TYPED_TEST(NewtonSchulzTest, TallIsTheTransposeOfWide) {
  for (const bool in_bf16 : {false, true})
    for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{300, 40}, {33, 7}, {1025, 17}}) {
      // Powers of two: the sum of squares is then exact in any order.
      Array x(rows, cols);
      for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] = std::exp2(double(i * 7 % 5)) * (i % 3 ? 1 : -1);
      const Array tall = this->run(x, {five}, in_bf16), wide = this->run(reference::transposed(x), {five}, in_bf16);
      reference::expect_same(tall, reference::transposed(wide), "tall");
    }
}

TYPED_TEST(NewtonSchulzTest, Bf16PointsWhereFp32Does) {
  for (const auto& [rows, cols] : shapes) {
    const Array x = newton_schulz_sample(rows, cols), exact = plain_newton_schulz(x, {five}),
                got = this->run(x, {five}, true);
    // bf16 products err by about 2 % of the RMS (2^-9 per rounding, amplified); the cosine loses half its square.
    EXPECT_GT(cosine(got, exact), 0.999) << rows << " x " << cols;
    EXPECT_NEAR(std::sqrt(reference::inner(got, got) / reference::inner(exact, exact)), 1, 0.03);
  }
}

TEST(NewtonSchulz, SameBitsOnOneThreadAndOnAll) {
  for (const bool in_bf16 : {false, true})
    for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{150, 333}, {333, 150}, {260, 260}}) {
      const Array x = newton_schulz_sample(rows, cols);
      const Array one = orthogonalized<Serial>(x, {five}, in_bf16);
      for (const int threads : {1, 2, 3})
        reference::expect_same(orthogonalized<Host>(x, {five}, in_bf16, Host(threads)), one, "threads");
    }
}

TEST(NewtonSchulz, RejectsWhatDoesNotFit) {
  const Host exec;
  Gemm<Host> gemm(exec);
  Workspace<Host> workspace(1 << 20);
  const Field<float, Host> in(4, 6), out(6, 4), padded(4, 6, 2);
  EXPECT_THROW((orthogonalize<Host>(exec, gemm, workspace, {five}, false, in.read(), out.matrix())), Error);
  EXPECT_THROW((orthogonalize<Host>(exec, gemm, workspace, {five}, false, in.read(), padded.matrix())), Error);
}

// Numbers whose products are exact: M and the squares must be exact too.
TYPED_TEST(NewtonSchulzTest, MomentumPass) {
  const TypeParam exec;
  for (const std::size_t n : {0, 1, 17, 4096, 10001}) {
    Array g(1, n), m(1, n);
    for (std::size_t i = 0; i < n; ++i) {
      g.values[i] = double(i % 5) - 2;
      m.values[i] = double(i % 7) - 3;
    }
    const Field<float, TypeParam> gradient(g), momentum(m);
    const Field<double, TypeParam> squares(1, chunk_count(n));
    advance_momentum<TypeParam>(exec, {0.5f, 2, 0.25f, 4}, gradient.read_vector(), momentum.vector(), squares.vector());
    const Array got = momentum.get(), sums = squares.get();
    double total = 0, want = 0;
    for (const double sum : sums.values) total += sum;
    for (std::size_t i = 0; i < n; ++i) {
      const double next = 0.5 * m.values[i] + 2 * g.values[i], u = 0.25 * g.values[i] + 4 * next;
      ASSERT_EQ(got.values[i], next);
      want += u * u;
    }
    EXPECT_EQ(total, want);
  }
}

// W = (1 - lr wd) W - lr s O with O in wide form, and its rounded copy.
template <class T, class Exec>
void check_move(std::size_t rows, std::size_t cols) {
  const Array o = reference::rounded<T>(reference::random_array(rows, cols, 3)), w = newton_schulz_sample(rows, cols);
  const Field<T, Exec> direction(rows > cols ? reference::transposed(o) : o);
  const Field<float, Exec> master(w), alone(w);
  const Field<bf16, Exec> rounded(rows, cols);
  const WeightMove step = {0.5, 0.25, 0.125, true};
  move_weight_wide<Exec, T>(Exec(), step, direction.read(), master.matrix(), rounded.matrix());
  move_weight_wide<Exec, T>(Exec(), step, direction.read(), alone.matrix(), {});
  Array want(rows, cols);
  for (std::size_t i = 0; i < want.values.size(); ++i) want.values[i] = 0.9375 * w.values[i] - 0.125 * o.values[i];
  const Array got = master.get();
  reference::expect_close(got, want, 2 * std::numeric_limits<float>::epsilon(), "master");  // three roundings
  reference::expect_same(rounded.get(), reference::rounded<bf16>(got), "rounded copy");
  reference::expect_same(alone.get(), got, "without a rounded copy");
}

TYPED_TEST(NewtonSchulzTest, LastPass) {
  for (const auto& [rows, cols] : shapes) {
    check_move<float, TypeParam>(rows, cols);
    check_move<bf16, TypeParam>(rows, cols);
  }
}

}  // namespace
}  // namespace sestina
