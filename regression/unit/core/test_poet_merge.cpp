// Merges of POET-X: what bf16 weights lose over many of them, tiles of rows and their scratch, and layers that merge at
// updates of their own.
#include <gtest/gtest.h>

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

// Less than the two copies in sums that a whole merge took, 2 m n of them, before rotations.
TEST(PoetMerge, ScratchIsACopyOfTheBaseAndTiles) {
  constexpr std::size_t m = 4096, n = 4096;
  PoetOptions options{.block = 64};
  const std::size_t whole = 2 * m * n * sizeof(float);
  EXPECT_LT((PoetScratch{2, 4}.merge(options, m, n)), whole * 2 / 5);
  EXPECT_LT((PoetScratch{4, 4}.merge(options, m, n)), whole * 2 / 3);
  options.residual = true;
  EXPECT_LT((PoetScratch{2, 4}.merge(options, m, n)), whole / 2);
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
