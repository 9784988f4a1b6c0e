// Newton-Schulz of one shard of a matrix, the other ranks played by loops over the whole matrix in double.
#include "kernels/optimizer/newton_schulz.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "regression/unit/kernels/plain_newton_schulz.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

using reference::Array;
using reference::cubic_step;
using reference::Field;
using reference::newton_schulz_sample;
using reference::plain_newton_schulz;
using reference::simple_step;

struct Slab {
  std::size_t row = 0, rows = 0, col = 0, cols = 0;
};

Array slab_of(const Array& x, const Slab& slab) {
  Array part(slab.rows, slab.cols);
  for (std::size_t i = 0; i < slab.rows; ++i)
    for (std::size_t j = 0; j < slab.cols; ++j) part(i, j) = x(slab.row + i, slab.col + j);
  return part;
}

double sum_of_squares(const Array& x) {
  double sum = 0;
  for (const double value : x.values) sum += value * value;
  return sum;
}

// factor times the Gram matrix over the cut side.
Array gram(const Array& x, CutSide cut, double factor) {
  const std::size_t side = cut == CutSide::rows ? x.cols : x.rows,
                    length = x.values.size() / std::max<std::size_t>(side, 1);
  Array g(side, side);
  for (std::size_t i = 0; i < side; ++i)
    for (std::size_t j = 0; j < side; ++j)
      for (std::size_t k = 0; k < length; ++k)
        g(i, j) += factor * (cut == CutSide::rows ? x(k, i) * x(k, j) : x(i, k) * x(j, k));
  return g;
}

// All other ranks together: they hold what lies outside the slab, and add what is theirs to the sums.
class Others {
 public:
  Others(const Array& whole, const Slab& slab, CutSide cut, const NewtonSchulz& ns)
      : now_(whole), slab_(slab), cut_(cut), ns_(ns) {}

  double squares() {
    const double all = sum_of_squares(now_), theirs = all - sum_of_squares(slab_of(now_, slab_));
    for (double& value : now_.values) value *= all > 0 ? 1 / std::sqrt(all) : 0;
    return theirs;
  }
  // The matrix after the next step, and what the others add before it.
  Array next_gram() {
    const NewtonSchulzStep& step = ns_.steps[step_++];
    const double factor = step.c == 0 ? step.b : 1;
    Array theirs = gram(now_, cut_, factor);
    const Array own = gram(slab_of(now_, slab_), cut_, factor);
    for (std::size_t i = 0; i < own.values.size(); ++i) theirs.values[i] -= own.values[i];
    const NewtonSchulz once = {std::span(&step, 1), 0};
    const double size = std::sqrt(sum_of_squares(now_));
    // The plain loops divide by the norm first: a step with the norm taken out of its coefficients.
    const NewtonSchulzStep scaled = {step.a * size, step.b * std::pow(size, 3), step.c * std::pow(size, 5)};
    newton_schulz_plain(std::span(&scaled, 1), 0, once.norm, now_.rows, now_.cols, now_.values);
    return theirs;
  }
  int steps() const { return static_cast<int>(step_); }

 private:
  Array now_;
  Slab slab_;
  CutSide cut_;
  const NewtonSchulz& ns_;
  std::size_t step_ = 0;
};

struct ShardResult {
  Array shard;
  int sums = 0, rows = 0;
};

// What the other squarers form of a I + b A + c A^2: its rows outside [begin, end).
Array polynomial(const Array& a, const NewtonSchulzStep& step) {
  Array p(a.rows, a.rows);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.rows; ++j) {
      double square = 0;
      for (std::size_t k = 0; k < a.rows; ++k) square += a(i, k) * a(k, j);
      p(i, j) = (i == j ? step.a : 0) + (step.c == 0 ? 1 : step.b) * a(i, j) + step.c * square;
    }
  return p;
}

struct Squarer {
  std::size_t number = 0, all = 1;
};

template <class T, class Exec>
ShardResult run_shard(const Array& whole, const Slab& slab, CutSide cut, const NewtonSchulz& ns, bool counted = true,
                      const Squarer& squarer = {}) {
  const Exec exec;
  Gemm<Exec> gemm(exec, true);
  Others others(whole, counted ? slab : Slab{}, cut, ns);
  ShardResult result;
  Array summed;
  ShardSums<Exec> sums = {[&](Vector<double, Exec> x) {
                            EXPECT_EQ(x.extent(0), 1u);
                            const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
                            host(0) += others.squares();
                            Kokkos::deep_copy(x, host);
                          },
                          [&](Vector<float, Exec> x) {
                            ++result.sums;
                            exec.fence();
                            const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
                            const Array theirs = others.next_gram();
                            ASSERT_EQ(host.extent(0), theirs.values.size());
                            summed = theirs;
                            for (std::size_t i = 0; i < theirs.values.size(); ++i) {
                              host(i) += static_cast<float>(theirs.values[i]);
                              summed.values[i] = host(i);
                            }
                            Kokkos::deep_copy(x, host);
                          }};
  sums.squarer = squarer.number;
  sums.squarers = squarer.all;
  const auto rows = [&](const auto& x) {
    using Value = std::remove_const_t<typename std::remove_cvref_t<decltype(x)>::value_type>;
    exec.fence();
    const std::size_t side = x.extent(0), begin = side * squarer.number / squarer.all,
                      end = side * (squarer.number + 1) / squarer.all;
    const Array p = polynomial(summed, ns.steps[static_cast<std::size_t>(result.rows++)]);
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
    for (std::size_t i = 0; i < side; ++i)
      for (std::size_t j = 0; j < side; ++j)
        if (i < begin || i >= end) host(i, j) = Value(static_cast<float>(p(i, j)));
    Kokkos::deep_copy(x, host);
  };
  sums.rows_float = rows;
  sums.rows_bf16 = rows;
  const Array own = slab_of(whole, slab);
  const std::size_t n = own.values.size(), chunks = chunk_count(n);
  Array flat = own;
  flat.rows = 1;
  flat.cols = n;
  const Field<float, Exec> u(flat);
  Workspace<Exec> workspace(bytes_of<NewtonSchulzShardScratch<T, Exec>, Exec>(slab.rows, slab.cols, cut));
  Array squares(1, chunks);
  for (std::size_t i = 0; i < n; ++i) squares.values[i / reduce_chunk] += own.values[i] * own.values[i];
  const Field<double, Exec> chunk_squares(squares);
  const Matrix<const T, Exec> x =
      newton_schulz_shard<T, Exec>(exec, gemm, workspace, ns, Blend<Exec>{{}, u.read_vector()}, slab.rows, slab.cols,
                                   cut, chunk_squares.read_vector(), counted, sums);
  exec.fence();
  EXPECT_EQ(workspace.peak(), workspace.capacity());
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
  result.shard = Array(slab.rows, slab.cols);
  for (std::size_t i = 0; i < slab.rows; ++i)
    for (std::size_t j = 0; j < slab.cols; ++j)
      result.shard(i, j) = static_cast<double>(static_cast<float>(host(i, j)));
  return result;
}

template <class Exec>
class NewtonSchulzShard : public testing::Test {};
TYPED_TEST_SUITE(NewtonSchulzShard, reference::RunSpaces, reference::SpaceNames);

struct ShardCase {
  std::size_t rows, cols;
  Slab slab;
  CutSide cut;
};
const std::vector<ShardCase> cases = {
    {33, 7, {0, 33, 0, 7}, CutSide::rows},       {33, 7, {5, 9, 0, 7}, CutSide::rows},
    {33, 7, {0, 33, 2, 3}, CutSide::cols},       {7, 33, {3, 2, 0, 33}, CutSide::rows},
    {7, 33, {0, 7, 11, 20}, CutSide::cols},      {64, 64, {16, 16, 0, 64}, CutSide::rows},
    {64, 64, {0, 64, 63, 1}, CutSide::cols},     {1, 40, {0, 1, 7, 13}, CutSide::cols},
    {40, 1, {7, 13, 0, 1}, CutSide::rows},       {130, 70, {0, 65, 0, 70}, CutSide::rows},
    {150, 193, {0, 150, 50, 97}, CutSide::cols}, {12, 9, {4, 0, 0, 9}, CutSide::rows},
};

// As for whole matrices (test_newton_schulz.cpp), with sums over the longer side where the cut side is the shorter one.
TYPED_TEST(NewtonSchulzShard, IsTheShardOfTheOrthogonalisedMatrix) {
  const std::vector<NewtonSchulzStep> steps = {simple_step, simple_step, cubic_step, simple_step, simple_step};
  for (const ShardCase& c : cases)
    for (const NewtonSchulzNorm norm : {NewtonSchulzNorm::max, NewtonSchulzNorm::add}) {
      const Array x = newton_schulz_sample(c.rows, c.cols);
      const NewtonSchulz ns = {steps, 1e-7, norm};
      const ShardResult got = run_shard<float, TypeParam>(x, c.slab, c.cut, ns);
      SCOPED_TRACE(testing::Message() << c.rows << " x " << c.cols << ", slab of " << c.slab.rows << " x "
                                      << c.slab.cols);
      EXPECT_EQ(got.sums, 5);
      reference::expect_close(got.shard, slab_of(plain_newton_schulz(x, ns), c.slab),
                              30 * double(c.rows + c.cols) * std::numeric_limits<float>::epsilon(), "shard");
    }
}

// Another rank holds the same slab: nothing of it is added here, and the result is the same.
TYPED_TEST(NewtonSchulzShard, UncountedShardsAddNothing) {
  const std::vector<NewtonSchulzStep> steps(5, simple_step);
  for (const ShardCase& c : cases) {
    const Array x = newton_schulz_sample(c.rows, c.cols);
    const NewtonSchulz ns = {steps};
    reference::expect_close(run_shard<float, TypeParam>(x, c.slab, c.cut, ns, false).shard,
                            slab_of(plain_newton_schulz(x, ns), c.slab),
                            30 * double(c.rows + c.cols) * std::numeric_limits<float>::epsilon(), "uncounted");
  }
}

// One of two, three or four ranks forms its rows of the polynomials, and takes those of others as they come.
TYPED_TEST(NewtonSchulzShard, RanksShareTheSquares) {
  const std::vector<NewtonSchulzStep> steps = {simple_step, simple_step, cubic_step, simple_step, simple_step};
  for (const ShardCase& c : cases)
    for (const Squarer& squarer : {Squarer{0, 2}, {1, 3}, {3, 4}}) {
      const Array x = newton_schulz_sample(c.rows, c.cols);
      const NewtonSchulz ns = {steps};
      SCOPED_TRACE(testing::Message() << c.rows << " x " << c.cols << ", rank " << squarer.number << " of "
                                      << squarer.all);
      const ShardResult got = run_shard<float, TypeParam>(x, c.slab, c.cut, ns, true, squarer);
      EXPECT_EQ(got.rows, 5);
      const Array want = slab_of(plain_newton_schulz(x, ns), c.slab);
      reference::expect_close(got.shard, want, 30 * double(c.rows + c.cols) * std::numeric_limits<float>::epsilon(),
                              "shard");
      if (squarer.all != 3) continue;
      const Array rounded = run_shard<bf16, TypeParam>(x, c.slab, c.cut, ns, true, squarer).shard;
      double difference = 0;
      for (std::size_t i = 0; i < want.values.size(); ++i)
        difference += std::pow(rounded.values[i] - want.values[i], 2);
      EXPECT_LE(std::sqrt(difference), 0.06 * std::sqrt(sum_of_squares(want)));
    }
}

// bf16 products err by about 2 % of the RMS (2^-9 per rounding, amplified).
TYPED_TEST(NewtonSchulzShard, Bf16PointsWhereFp32Does) {
  const std::vector<NewtonSchulzStep> steps(5, simple_step);
  for (const ShardCase& c : cases) {
    if (c.slab.rows == 0) continue;
    const Array x = newton_schulz_sample(c.rows, c.cols), want = slab_of(plain_newton_schulz(x, {steps}), c.slab);
    const Array got = run_shard<bf16, TypeParam>(x, c.slab, c.cut, {steps}).shard;
    double difference = 0;
    for (std::size_t i = 0; i < got.values.size(); ++i) difference += std::pow(got.values[i] - want.values[i], 2);
    EXPECT_LT(std::sqrt(difference / sum_of_squares(want)), 0.06) << c.rows << " x " << c.cols;
  }
}

TYPED_TEST(NewtonSchulzShard, ZeroGivesZero) {
  const std::vector<NewtonSchulzStep> steps(5, simple_step);
  for (const double eps : {1e-7, 0.0})
    for (const ShardCase& c : cases) {
      const NewtonSchulz ns = {steps, eps};
      const Array zero(c.rows, c.cols), none(c.slab.rows, c.slab.cols);
      reference::expect_same(run_shard<float, TypeParam>(zero, c.slab, c.cut, ns).shard, none, "float");
      reference::expect_same(run_shard<bf16, TypeParam>(zero, c.slab, c.cut, ns).shard, none, "bf16");
    }
}

}  // namespace
}  // namespace sestina
