// Merges of POET-X: what bf16 weights lose over many of them, tiles of rows and their scratch, and layers that merge at
// updates of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/layout/tensor_spec.hpp"
#include "core/layout/weight_form.hpp"
#include "kernels/base/random.hpp"
#include "kernels/model/quantise.hpp"
#include "regression/unit/core/poet_layer.hpp"

namespace sestina {
namespace {

double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double off = 0, whole = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    off += (a[i] - b[i]) * (a[i] - b[i]);
    whole += b[i] * b[i];
  }
  return std::sqrt(off / whole);
}

// Next to the same merges in double. Each one rounds bf16 weights again: their noise grows with the root of the number.
TEST(PoetMerge, AResidualKeepsWhatBf16WouldLose) {
  PoetLayer<double> exact(24, 16, 4, false);
  PoetLayer<bf16> plain(24, 16, 4, false), kept(24, 16, 4, true);
  PoetLayer<float> single(24, 16, 4, false);
  constexpr std::uint64_t merges = 1500;
  for (std::uint64_t number = 1; number <= merges; ++number) {
    const auto one = [&](auto& layer) {
      layer.move(number, 0.02);
      layer.merge(number);
    };
    one(exact), one(plain), one(kept), one(single);
  }
  const std::vector<double> want = exact.dense();
  const double bf16_noise = relative_distance(plain.dense(), want), noise = relative_distance(kept.dense(), want);
  RecordProperty("noise_bf16", std::to_string(bf16_noise));
  RecordProperty("noise_residual", std::to_string(noise));
  EXPECT_GT(bf16_noise, 0.03);
  EXPECT_LT(noise, 0.1 * bf16_noise);
  EXPECT_LT(noise, 0.003);  // that of one rounding to bf16
  EXPECT_LT(relative_distance(single.dense(), want), 1e-4);
}

// The same for codes: each merge rounds to their grid again, in 4 bits by sixteen times as much as in 8.
TEST(PoetMerge, AResidualKeepsWhatCodesWouldLose) {
  PoetLayer<double> exact(24, 16, 4, false);
  const auto layer = [](int bits, bool residual) {
    return PoetLayer<float>(24, 16, {.block = 4, .fourth = 2, .group = 32, .bits = bits, .residual = residual});
  };
  PoetLayer<float> eight = layer(8, false), four = layer(4, false), eight_kept = layer(8, true),
                   four_kept = layer(4, true);
  for (std::uint64_t number = 1; number <= 200; ++number) {
    const auto one = [&](auto& each) {
      each.move(number, 0.02);
      each.merge(number);
    };
    one(exact), one(eight), one(four), one(eight_kept), one(four_kept);
  }
  const std::vector<double> want = exact.dense();
  const double of_eight = relative_distance(eight.dense(), want), of_four = relative_distance(four.dense(), want);
  // What is left is one rounding to the grid, as the passes see it: some 0.3 of its step in the mean.
  EXPECT_GT(of_eight, 0.04);
  EXPECT_GT(of_four, 0.5);
  EXPECT_LT(relative_distance(eight_kept.dense(), want), 0.01);
  EXPECT_LT(relative_distance(four_kept.dense(), want), 0.15);
}

TEST(PoetMerge, NothingChangesWithoutARotation) {
  PoetLayer<bf16> plain(24, 16, 4, false), kept(24, 16, 4, true);
  EXPECT_EQ(plain.dense(), kept.dense());  // passes know of no residual
  const std::vector<double> before = kept.dense();
  for (std::uint64_t number = 1; number <= 5; ++number) kept.merge(number);
  EXPECT_EQ(kept.dense(), before);
}

// Several tiles of rows, the last one shorter.
TEST(PoetMerge, TilesOfRowsAreTheWholeLayer) {
  PoetLayer<float> layer(1056, 1024, 32, false);
  ASSERT_LT(layer.options.tile_rows(1056, 1024), 1056u);
  layer.move(1, 0.02);
  const std::vector<double> before = layer.dense();
  layer.merge(1);
  EXPECT_LT(relative_distance(layer.dense(), before), 1e-6);
  for (std::size_t i = 0; i < layer.rotation_in.size(); ++i) EXPECT_EQ(layer.rotation_in(i), 0);
}

// Element (i, j) of the rotation of a side of n with one block, from its packed elements: I + 2 Q + 2 Q^2 + 2 Q^3 +
// 2 Q^4, and the identity outside of it.
std::vector<double> turned_side(const PoetLayer<double>::Line<double>& theta, std::size_t b, std::size_t n) {
  std::vector<double> q(b * b, 0), power(b * b, 0), g(n * n, 0);
  std::size_t at = 0;
  for (std::size_t i = 0; i < b; ++i)
    for (std::size_t j = i + 1; j < b; ++j, ++at) q[j * b + i] = -(q[i * b + j] = theta(at));
  for (std::size_t i = 0; i < b; ++i) power[i * b + i] = 1;
  for (std::size_t i = 0; i < n; ++i) g[i * n + i] = 1;
  for (int order = 1; order <= 4; ++order) {
    std::vector<double> next(b * b, 0);
    for (std::size_t i = 0; i < b; ++i)
      for (std::size_t j = 0; j < b; ++j) {
        for (std::size_t k = 0; k < b; ++k) next[i * b + j] += power[i * b + k] * q[k * b + j];
        g[i * n + j] += 2 * next[i * b + j];
      }
    power = std::move(next);
  }
  return g;
}

// The weight is what a plain product of the base with the rotations says: b rows and b columns of it were drawn, what
// is in neither of them stays, to the bit.
TEST(PoetMerge, OneBlockTurnsTheRowsAndColumnsThatWereDrawn) {
  constexpr std::size_t m = 24, n = 16, b = 4;
  PoetLayer<double> layer(m, n, b, false, 1);
  ASSERT_EQ(layer.rotation_in.size() + layer.rotation_out.size(), b * (b - 1));
  const std::vector<double> before = layer.dense();
  layer.move(1, 0.1);
  const std::vector<double> of_in = turned_side(layer.rotation_in, b, n),
                            of_out = turned_side(layer.rotation_out, b, m);
  const std::vector<double> now = layer.dense();
  std::size_t moved = 0;
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      const auto row = static_cast<std::size_t>(layer.perm_out(i)), col = static_cast<std::size_t>(layer.perm_in(j));
      double want = 0;
      for (std::size_t k = 0; k < m; ++k)
        for (std::size_t l = 0; l < n; ++l) want += of_out[k * m + row] * layer.base(k, l) * of_in[col * n + l];
      EXPECT_NEAR(now[i * n + j], want, 1e-16) << i << " " << j;  // sums of 16 products of some 0.02, in two orders
      if (row >= b && col >= b) EXPECT_EQ(now[i * n + j], before[i * n + j]) << i << " " << j;
      moved += now[i * n + j] != before[i * n + j] ? 1 : 0;
    }
  EXPECT_EQ(moved, m * n - (m - b) * (n - b));
}

// Each merge draws other ones, so that after some of them all rows and columns were turned; several tiles of rows, with
// blocks in some of them, and a block in each of eight parts.
TEST(PoetMerge, EachMergeDrawsOneBlockAndTheLayerStays) {
  PoetLayer<double> layer(24, 16, 4, false, 1);
  std::vector<bool> rows(24, false);
  for (std::uint64_t number = 1; number <= 40; ++number) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (layer.perm_out(i) < 4) rows[i] = true;
    layer.move(number, 0.05);
    const std::vector<double> before = layer.dense();
    layer.merge(number);
    EXPECT_LT(relative_distance(layer.dense(), before), 1e-15) << number;
  }
  EXPECT_EQ(std::count(rows.begin(), rows.end(), true), 24);
  for (const std::size_t parts : {1, 8}) {
    PoetLayer<float> wide(1280, 1024, 32, false, parts);
    ASSERT_LT(wide.options.tile_rows(1280, 1024), 1120u);  // where the last one of eight begins
    wide.move(1, 0.02);
    const std::vector<double> before = wide.dense();
    wide.merge(1);
    EXPECT_LT(relative_distance(wide.dense(), before), 1e-6) << parts;
    EXPECT_EQ(wide.rotation_out.size(), parts * 32 * 31 / 2);
  }
}

// Less than the two copies in sums that a whole merge took, 2 m n of them, before rotations.
TEST(PoetMerge, ScratchIsACopyOfTheBaseAndTiles) {
  constexpr std::size_t m = 4096, n = 4096;
  PoetOptions options{.block = 64};
  const std::size_t whole = 2 * m * n * sizeof(float);
  EXPECT_LT((PoetScratch{2, 4}.merge(options, m, n)), whole * 2 / 5);
  EXPECT_LT((PoetScratch{4, 4}.merge(options, m, n)), whole * 2 / 3);
  options.residual = true;
  EXPECT_LT((PoetScratch{2, 4}.merge(options, m, n)), whole / 2);
  options.group = 256;  // all sums, and nothing next to them
  EXPECT_LT((PoetScratch{2, 4}.merge(options, m, n)), whole * 2 / 3);
}

TEST(PoetMerge, ResidualsKeepSixteenBits) {
  constexpr std::size_t n = 4096;
  Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> x("x", 1, n), back("back", 1, n);
  for (std::size_t i = 0; i < n; ++i) x(0, i) = static_cast<float>(normal(3, i) * std::pow(2.0, i % 40 - 20.0));
  for (int k = 0; k < 40; ++k) {  // powers of two, their neighbours, and ties
    const float power = std::ldexp(1.0f, k - 20);
    x(0, 4 * k) = -power;
    x(0, 4 * k + 1) = std::nextafter(power, 0.0f);
    x(0, 4 * k + 2) = power * (1 + 1.0f / 256);
    x(0, 4 * k + 3) = -power * (1 + 3.0f / 256);
  }
  x(0, n - 1) = 0;
  Kokkos::View<bf16**, Kokkos::LayoutRight, Kokkos::HostSpace> values("values", 1, n);
  Kokkos::View<std::uint8_t**, Kokkos::LayoutRight, Kokkos::HostSpace> residuals("residuals", 1, n);
  Kokkos::View<std::int32_t*, Kokkos::HostSpace> row("row", 1), cols("cols", n);
  for (std::size_t i = 0; i < n; ++i) cols(i) = static_cast<std::int32_t>(i);
  const Host exec;
  put_with_residual<Host>(exec, x, row, cols, values, residuals);
  widen_with_residual<Host>(exec, Vector<const bf16, Host>(values.data(), n),
                            Vector<const std::uint8_t, Host>(residuals.data(), n), Vector<float, Host>(back.data(), n));
  exec.fence();
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_EQ(values(0, i).bits, bf16(x(0, i)).bits);
    EXPECT_LE(std::abs(back(0, i) - x(0, i)), std::ldexp(std::abs(x(0, i)), -15)) << x(0, i);
  }
}

// State starts over after the later one of the merge that is due and an early one, in the layers that had one.
TEST(PoetMerge, StateStartsOverAfterEarlyMerges) {
  LinearOptions o;
  o.form = "poet-x";
  o.merge_every = 5;
  LayerMerges early = {0, 0};
  std::int64_t since = 0;
  const TensorSpec dense{.name = "w", .rows = 256, .cols = 256, .layer = 1};
  EXPECT_FALSE(find_weight_form(o)->parts(o, dense).at(3).resets_early);
  o.merge_bound = 0.5;
  const TensorSpec rotation = find_weight_form(o)->parts(o, dense).at(3);
  EXPECT_TRUE(rotation.resets_early);
  EXPECT_FALSE(find_weight_form(o)->parts(o, dense).at(0).resets_early);
  for (std::int64_t t = 1; t <= 31; ++t) {
    const std::int64_t plain = updates_of_state(rotation, t);
    EXPECT_EQ(updates_of_state(plain, t, 1, &early), ++since) << t;
    EXPECT_EQ(updates_of_state(plain, t, 0, &early), plain) << t;
    EXPECT_EQ(updates_of_state(plain, t, 1, nullptr), plain) << t;
    if (t == 3 || t == 13 || t == 14 || t == 20) early[1] = t;
    if (t % 5 == 0 || early[1] == t) since = 0;
  }
}

// Layer l merges, and the state of its rotations starts over, l updates before the first one.
TEST(PoetMerge, LayersMergeAtUpdatesOfTheirOwn) {
  LinearOptions o;
  o.form = "poet-x";
  o.merge_every = 5;
  for (const bool staggered : {false, true}) {
    o.staggered = staggered;
    for (int layer = 0; layer < 7; ++layer) {
      const TensorSpec dense{.name = "w", .rows = 256, .cols = 256, .layer = layer};
      const TensorSpec rotation = find_weight_form(o)->parts(o, dense).at(3);
      std::int64_t number = 0, since = 0;
      for (std::int64_t t = 1; t <= 31; ++t) {
        ++since;
        EXPECT_EQ(updates_of_state(rotation, t), since) << layer << " " << t;
        const bool due = (t + (staggered ? layer : 0)) % 5 == 0;
        const std::int64_t after = merge_after(o, layer, t);
        EXPECT_EQ(after > 0, due) << layer << " " << t;
        if (after == 0) continue;
        EXPECT_GT(after, number);  // no permutation is drawn twice
        number = after;
        since = 0;
      }
      EXPECT_GE(number, 6);
    }
  }
}

}  // namespace
}  // namespace sestina
