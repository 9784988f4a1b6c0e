// What POET-X tells of its rotations, against plain references in double: norms of the skew generators, distances of
// the blocks from orthogonal, singular values of whole weights and of shards.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "regression/unit/core/poet_layer.hpp"

namespace sestina {
namespace {

using SquareBlock = std::vector<double>;  // (b, b), row by row

SquareBlock times(std::size_t b, const SquareBlock& x, const SquareBlock& y) {
  SquareBlock z(b * b, 0);
  for (std::size_t i = 0; i < b; ++i)
    for (std::size_t k = 0; k < b; ++k)
      for (std::size_t j = 0; j < b; ++j) z[i * b + j] += x[i * b + k] * y[k * b + j];
  return z;
}

template <class Packed>
SquareBlock skew_block(const Packed& theta, std::size_t block, std::size_t b) {
  SquareBlock q(b * b, 0);
  std::size_t at = block * b * (b - 1) / 2;
  for (std::size_t i = 0; i < b; ++i)
    for (std::size_t j = i + 1; j < b; ++j, ++at) {
      q[i * b + j] = static_cast<double>(theta(at));
      q[j * b + i] = -q[i * b + j];
    }
  return q;
}

// By power iterations on Q^T Q = -Q^2, many enough that the second singular value does not matter.
double norm_of(const SquareBlock& q, std::size_t b) {
  std::vector<double> x(b);
  for (std::size_t i = 0; i < b; ++i) x[i] = normal(17, i);
  double norm = 0;
  for (int iteration = 0; iteration < 20000; ++iteration) {
    std::vector<double> y(b, 0);
    for (std::size_t i = 0; i < b; ++i)
      for (std::size_t j = 0; j < b; ++j) y[i] += q[i * b + j] * x[j];
    double squares = 0;
    for (const double value : y) squares += value * value;
    norm = std::sqrt(squares);
    if (norm == 0) break;
    for (std::size_t i = 0; i < b; ++i) x[i] = y[i] / norm;
  }
  return norm;
}

// ||G^T G - I||_F / sqrt(b) of G = I + 2 Q + 2 Q^2 + 2 Q^3 + k Q^4.
double defect_of(const SquareBlock& q, std::size_t b, double k) {
  const SquareBlock q2 = times(b, q, q), q3 = times(b, q2, q), q4 = times(b, q2, q2);
  SquareBlock g(b * b), transposed(b * b);
  for (std::size_t i = 0; i < b * b; ++i) g[i] = 2 * q[i] + 2 * q2[i] + 2 * q3[i] + k * q4[i];
  for (std::size_t i = 0; i < b; ++i) g[i * b + i] += 1;
  for (std::size_t i = 0; i < b; ++i)
    for (std::size_t j = 0; j < b; ++j) transposed[i * b + j] = g[j * b + i];
  SquareBlock product = times(b, transposed, g);
  double squares = 0;
  for (std::size_t i = 0; i < b; ++i) product[i * b + i] -= 1;
  for (const double value : product) squares += value * value;
  return std::sqrt(squares / static_cast<double>(b));
}

template <class T>
RotationMeasure measure(PoetLayer<T>& layer, const ShardedSides& shards = {}, TensorCut cut = TensorCut::none) {
  LinearOptions linear;
  linear.form = "poet-x";
  linear.block_size = static_cast<std::int64_t>(layer.options.block);
  linear.residual = layer.options.residual;
  linear.shards = std::max(shards.out, shards.in);
  linear.one_block = layer.options.most > 0;
  const FormShape shape{0, layer.weight.rows(), layer.weight.cols(), sizeof(T), sizeof(Acc<T>)};
  const std::size_t bytes = bytes_taken<Host>(
      [&](Workspace<Host>& counter) { declare_poet_measure<Host>(counter, linear, shape, cut, RotationLook::all); });
  Workspace<Host> own(bytes);
  Solver<Host> solver(layer.exec);
  const RotationMeasure told =
      poet_measure<Host, T>({layer.exec, layer.gemm, own}, solver, layer.options, shards, layer.weight);
  EXPECT_LE(own.peak(), bytes);
  EXPECT_EQ(sizeof(T) == 4 ? host_rotation_scratch(linear, shape, cut, RotationLook::all) : bytes, bytes);
  const std::size_t few = bytes_taken<Host>(
      [&](Workspace<Host>& counter) { declare_poet_measure<Host>(counter, linear, shape, cut, RotationLook::norm); });
  EXPECT_LT(few, bytes);
  Workspace<Host> less(few);
  const double norm = poet_largest_rotation<Host, T>({layer.exec, layer.gemm, less}, layer.options, layer.weight);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(norm), std::bit_cast<std::uint64_t>(told.largest_q));
  EXPECT_LE(less.peak(), few);
  return told;
}

template <class T>
struct Expected {
  double norm = 0, defect = 0;
  explicit Expected(const PoetLayer<T>& layer) {
    const std::size_t b = layer.options.block;
    for (const auto& theta : {layer.rotation_in, layer.rotation_out})
      for (std::size_t block = 0; block < theta.size() / (b * (b - 1) / 2); ++block) {
        const SquareBlock q = skew_block(theta, block, b);
        norm = std::max(norm, norm_of(q, b));
        defect = std::max(defect, defect_of(q, b, layer.options.fourth));
      }
  }
};

// From above, by b^(1/1024) at most and rounding of 9 squarings, each of which is halved by the root after it.
template <class T>
void expect_rotations(PoetLayer<T>& layer, const std::string& what) {
  const double eps = std::numeric_limits<Acc<T>>::epsilon(), b = static_cast<double>(layer.options.block);
  const Expected<T> want(layer);
  const RotationMeasure told = measure(layer);
  EXPECT_GE(told.largest_q, want.norm * (1 - 20 * b * eps)) << what;
  EXPECT_LE(told.largest_q, want.norm * std::pow(b, 1.0 / 1024) * (1 + 20 * b * eps)) << what;
  EXPECT_NEAR(told.defect, want.defect, 10 * b * eps) << what;
}

TEST(PoetMeasure, NormsAndDefectsAreThoseOfTheBlocks) {
  for (const double fourth : {1.0, 2.0})
    for (const std::size_t block : {2, 4, 12})
      for (const double size : {0.01, 0.05, 0.2}) {
        PoetLayer<float> single(24, 36, block, false);
        PoetLayer<double> exact(24, 36, block, false);
        single.options.fourth = exact.options.fourth = fourth;
        single.move(3, size), exact.move(3, size);
        const std::string what = fmt::format("k {}, blocks of {}, {}", fourth, block, size);
        expect_rotations(single, what);
        expect_rotations(exact, what);
        PoetLayer<double> drawn(24, 36, block, false, 1);
        drawn.move(3, size);
        expect_rotations(drawn, what + ", one of them");
      }
}

// One block of two: Q = (0 q; -q 0), G^T G = (1 - q^4)^2 I.
TEST(PoetMeasure, AnAngleIsTheNormOfItsBlock) {
  PoetLayer<double> layer(4, 4, 2, false);
  layer.options.fourth = 1;
  for (const double q : {0.5, 0.9}) {
    layer.rotation_out(1) = q;
    const RotationMeasure told = measure(layer);
    EXPECT_NEAR(told.largest_q, q, q * (std::pow(2.0, 1.0 / 1024) - 1));
    EXPECT_NEAR(told.defect, 1 - std::pow(1 - std::pow(q, 4), 2), 1e-14);
  }
}

TEST(PoetMeasure, WithoutRotationsThereIsNoDefect) {
  PoetLayer<bf16> layer(24, 16, 4, true);
  const RotationMeasure told = measure(layer);
  EXPECT_EQ(told.largest_q, 0);
  EXPECT_EQ(told.defect, 0);
  EXPECT_EQ(told.applied_defect, 0);
}

// Of bf16 the blocks as applied are rounded to 8 bits: elements near 1 by up to 2^-9, which is the larger part then.
TEST(PoetMeasure, AppliedBlocksAreRounded) {
  PoetLayer<bf16> layer(24, 16, 4, true);
  layer.move(1, 0.02);
  const RotationMeasure told = measure(layer);
  EXPECT_LT(told.defect, 1e-5);
  EXPECT_GT(told.applied_defect, 100 * told.defect);
  EXPECT_LT(told.applied_defect, 4 * std::ldexp(1.0, -8));
}

TEST(PoetMeasure, WhatIsNotFiniteShows) {
  PoetLayer<float> layer(24, 16, 4, false);
  layer.rotation_in(5) = std::numeric_limits<float>::quiet_NaN();
  const RotationMeasure told = measure(layer);
  EXPECT_TRUE(std::isnan(told.largest_q));
  EXPECT_TRUE(std::isnan(told.defect));
  EXPECT_TRUE(std::isnan(told.sigma_max));
}

// A diagonal of 1 to 8 under permutations: Gram matrices of small whole numbers, so that only the solver rounds.
PoetLayer<float> ladder() {
  PoetLayer<float> layer(12, 8, 4, false);
  PoetLayer<float>::Values<float> dense("dense", 12, 8);
  for (std::size_t i = 0; i < 8; ++i) dense(i, i) = static_cast<float>(i + 1);
  layer.assign(dense);
  return layer;
}

TEST(PoetMeasure, SingularValuesAreThoseOfTheWeight) {
  PoetLayer<float> layer = ladder();
  const RotationMeasure told = measure(layer);
  EXPECT_NEAR(told.sigma_max, 8, 1e-12);
  EXPECT_NEAR(told.sigma_min, 1, 1e-12);
  EXPECT_NEAR(told.squares, 204, 1e-11);  // 1 + 4 + ... + 64
  EXPECT_EQ(told.count, 8);
}

// Rows 0 to 5 hold 1 to 6, the others 7, 8 and zeros; columns 0 to 3 hold 1 to 4.
TEST(PoetMeasure, ShardsTellTheirOwn) {
  PoetLayer<float> layer = ladder();
  const RotationMeasure rows = measure(layer, {2, 1}, TensorCut::rows);
  EXPECT_NEAR(rows.sigma_max, 8, 1e-12);
  EXPECT_NEAR(rows.sigma_min, 0, 1e-12);
  EXPECT_NEAR(rows.squares, 204, 1e-11);
  EXPECT_EQ(rows.count, 12);
  const RotationMeasure columns = measure(layer, {1, 2}, TensorCut::cols);
  EXPECT_NEAR(columns.sigma_min, 1, 1e-12);
  EXPECT_EQ(columns.count, 8);
}

// Rotations and their merges keep singular values, but for their defect and rounding: relative, at most half the defect
// of G^T G on each side, of 40 merges.
TEST(PoetMeasure, MergesKeepSingularValues) {
  PoetLayer<float> layer = ladder();
  double defects = 0;
  RotationMeasure told;
  for (std::uint64_t number = 1; number <= 40; ++number) {
    layer.move(number, 0.02);
    told = measure(layer);
    EXPECT_GT(told.largest_q, 0);
    defects += 2 * told.defect;
    layer.merge(number);
  }
  const double allowed = defects + 40 * 20 * std::numeric_limits<float>::epsilon();
  EXPECT_NEAR(told.sigma_max / 8, 1, allowed);
  EXPECT_NEAR(told.sigma_min / 1, 1, allowed);
  EXPECT_EQ(measure(layer).largest_q, 0);
}

// With k = 1 each merge shrinks the weight by the fourth power of the norm, which the root of the mean square shows.
TEST(PoetMeasure, ThePublishedSeriesShrinks) {
  PoetLayer<float> paper = ladder(), even = ladder();
  paper.options.fourth = 1;
  for (std::uint64_t number = 1; number <= 40; ++number)
    for (PoetLayer<float>* layer : {&paper, &even}) {
      layer->move(number, 0.05);
      layer->merge(number);
    }
  const double lost = 1 - measure(paper).squares / 204, lost_even = 1 - measure(even).squares / 204;
  EXPECT_GT(lost, 1e-3);
  EXPECT_LT(std::abs(lost_even), lost / 4);
}

}  // namespace
}  // namespace sestina
