// Moments in 8 bits: the codes against the published table and a search in it, AdamW on them against plain loops in
// double, and the form of devices against that of the host.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/optimizer/adamw.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina::reference {
namespace {

// The values of Dettmers et al. as their program lists them: in decade i the middles between 2^i + 1 (without a sign
// 2^(i + 1) + 1) even steps from 0.1 to 1, times 10^(i - 6), of both signs; 0 and 1.
std::vector<double> published_table(bool with_sign) {
  std::vector<double> table = {0, 1};
  for (int i = 0; i < 7; ++i) {
    const int steps = with_sign ? 1 << i : 2 << i;
    for (int k = 0; k < steps; ++k) {
      const double low = 0.1 + 0.9 * k / steps, high = 0.1 + 0.9 * (k + 1) / steps;
      table.push_back(std::pow(10.0, i - 6) * (low + high) / 2);
      if (with_sign) table.push_back(-table.back());
    }
  }
  std::sort(table.begin(), table.end());
  return table;
}

double nearest(const std::vector<double>& table, double x) {
  const auto above = std::lower_bound(table.begin(), table.end(), x);
  if (above == table.begin() || above == table.end()) return above == table.end() ? table.back() : *above;
  return *above - x < x - *(above - 1) ? *above : *(above - 1);
}

template <bool with_sign>
std::vector<double> all_shares() {
  std::vector<double> shares;
  for (int code = 0; code < 256; ++code) shares.push_back(share_of<with_sign>(static_cast<std::uint8_t>(code)));
  std::sort(shares.begin(), shares.end());
  return shares;
}

template <bool with_sign>
void expect_nearest() {
  const std::vector<double> table = published_table(with_sign), shares = all_shares<with_sign>();
  ASSERT_EQ(table.size(), 256u);
  for (std::size_t i = 0; i < table.size(); ++i)  // a power of ten in single precision is one of several products
    EXPECT_NEAR(shares[i], table[i], few_roundings * std::abs(table[i])) << i;
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(code_of_share<with_sign>(share_of<with_sign>(byte)), byte);
  }
  for (int i = 0; i <= 4000; ++i) {
    const double size = i % 2 == 0 ? i / 4000.0 : std::pow(10.0, -8.0 * i / 4000),
                 x = i % 3 == 0 && with_sign ? -size : size;
    const double got = share_of<with_sign>(code_of_share<with_sign>(static_cast<float>(x)));
    double want = nearest(table, x);
    if (!with_sign && x > 0 && want == 0) want = *std::upper_bound(table.begin(), table.end(), 0.0);
    // Between two values in the middle both are right.
    EXPECT_LE(std::abs(got - x), std::abs(want - x) + few_roundings * (std::abs(x) + std::abs(want)))
        << x << ": " << got << ", " << want;
  }
}

TEST(MomentCode, IsTheNearestOfThePublishedValues) {
  expect_nearest<true>();
  expect_nearest<false>();
}

TEST(MomentCode, WhatIsNoNumberIsTheLargest) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
  EXPECT_GT(magnitude_bits(nan), magnitude_bits(infinite));
  EXPECT_GT(magnitude_bits(-nan), magnitude_bits(1e30f));
  EXPECT_EQ(magnitude_bits(-2.0f), magnitude_bits(2.0));
  EXPECT_EQ(divisor_of(nan), 1);
  EXPECT_EQ(divisor_of(0), 1);
}

// Parameters (rows, cols) in one piece, moments in blocks of `block` columns.
template <class Exec, class T>
struct Coded {
  using S = Acc<T>;
  using Memory = typename Exec::memory_space;
  std::size_t rows, cols, block;
  Kokkos::View<S*, Memory> gradient, master;
  Kokkos::View<T*, Memory> weight;
  Kokkos::View<std::uint8_t**, Kokkos::LayoutRight, Memory> m, v;
  Kokkos::View<float**, Kokkos::LayoutRight, Memory> m_scale, v_scale;

  Coded(std::size_t rows, std::size_t cols, std::size_t block)
      : rows(rows),
        cols(cols),
        block(block),
        gradient("g", rows * cols),
        master("w", rows * cols),
        weight("rounded", rows * cols),
        m("m", rows, cols),
        v("v", rows, cols),
        m_scale("m_scale", rows, moment_blocks(cols, block)),
        v_scale("v_scale", rows, moment_blocks(cols, block)) {
    Array start(1, rows * cols);
    for (std::size_t i = 0; i < start.values.size(); ++i) start.values[i] = std::cos(1.3 * double(i));
    set_values(master, start);
  }
  void set_gradient(unsigned seed) const {
    Array g = random_array(1, rows * cols, seed);
    for (std::size_t i = 0; i < g.values.size(); ++i) g.values[i] *= std::exp2(double(i % 23) - 16);
    set_values(gradient, g);
  }
  CodedMoments<Exec> moments() const { return {block, m, v, m_scale, v_scale}; }
  void step(const AdamWStep& rule) const { adamw<Exec, T>(Exec(), rule, run()); }
  CodedRun<T> run() const { return coded_run<Exec, T>(gradient, master, weight, moments()); }
  Array decoded(bool second) const {
    const Array scale = values_of(second ? v_scale : m_scale), codes = values_of(second ? v : m);
    Array values(rows, cols);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < cols; ++j) {
        const auto code = static_cast<std::uint8_t>(codes(i, j));
        values(i, j) = scale(i, j / block) * double(second ? share_of<false>(code) : share_of<true>(code));
      }
    return values;
  }
};

template <class C>
class CodedAdamW : public testing::Test {};
TYPED_TEST_SUITE(CodedAdamW, AllCases);

// Each step from the decoded moments of the one before: weights as AdamW moves them, moments coded to the nearest share
// of the largest in the block.
TYPED_TEST(CodedAdamW, MovesAsAdamWFromItsMoments) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  constexpr double eps = 16 * std::numeric_limits<Acc<T>>::epsilon();  // a dozen roundings
  const std::vector<double> signed_table = published_table(true), table = published_table(false);
  for (const auto& [rows, cols, block] :
       {std::array<std::size_t, 3>{3, 70, 32}, {1, 16, 16}, {5, 7, 16}, {2, 4100, 2048}}) {
    const Coded<Exec, T> run(rows, cols, block);
    for (int t = 1; t <= 3; ++t) {
      run.set_gradient(static_cast<unsigned>(t));
      AdamWStep rule{0.02, 0.9, 0.95, 1e-8, 0.1, 1 - std::pow(0.9, t), 1 - std::pow(0.95, t), 0.5};
      const Array g = values_of(run.gradient), before = values_of(run.master);
      Array m = run.decoded(false), v = run.decoded(true);
      run.step(rule);
      const Array got = values_of(run.master), rounded_to = values_of(run.weight), m_got = run.decoded(false),
                  v_got = run.decoded(true);
      for (std::size_t i = 0; i < got.values.size(); ++i) {
        const double x = 0.5 * g.values[i];
        m.values[i] = 0.9 * m.values[i] + 0.1 * x;
        v.values[i] = 0.95 * v.values[i] + 0.05 * x * x;
        const double w =
            before.values[i] * (1 - 0.02 * 0.1) -
            0.02 * m.values[i] / rule.bias_correction1 / (std::sqrt(v.values[i] / rule.bias_correction2) + rule.eps);
        ASSERT_NEAR(got.values[i], w, (eps + (t > 1 ? few_roundings : 0)) * (1 + std::abs(w))) << i;
        ASSERT_EQ(rounded_to.values[i], double(Acc<T>(T(Acc<T>(got.values[i])))));
      }
      double m_top = 0, v_top = 0;
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < cols; ++j) {
          if (j % block == 0) m_top = v_top = 0;
          for (std::size_t k = j; j % block == 0 && k < std::min(cols, j + block); ++k) {
            m_top = std::max(m_top, std::abs(m(i, k)));
            v_top = std::max(v_top, v(i, k));
          }
          const double smallest = *std::upper_bound(table.begin(), table.end(), 0.0) * v_top;
          // No farther than the nearest, but for roundings of fp32 of value and scale.
          const double m_off = std::abs(nearest(signed_table, m(i, j) / m_top) * m_top - m(i, j));
          const double v_off =
              std::max(std::abs(nearest(table, v(i, j) / v_top) * v_top - v(i, j)), smallest - v(i, j));
          ASSERT_LE(std::abs(m_got(i, j) - m(i, j)), m_off + few_roundings * m_top) << i << ' ' << j;
          ASSERT_LE(std::abs(v_got(i, j) - v(i, j)), v_off + few_roundings * v_top) << i << ' ' << j;
          ASSERT_GT(v_got(i, j), 0);
        }
    }
  }
}

// One launch for matrices of several shapes: the same bits as one for each.
TYPED_TEST(CodedAdamW, SeveralMatricesAreUpdatedAsEach) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  std::vector<Coded<Exec, T>> each, together;
  for (const auto& [rows, cols] : {std::array<std::size_t, 2>{3, 70}, {1, 32}, {40, 300}, {2, 31}}) {
    each.emplace_back(rows, cols, 32);
    together.emplace_back(rows, cols, 32);
  }
  std::vector<CodedRun<T>> runs;
  CodedRuns<Exec, T> all{{}, 32, 0};
  for (const auto& one : together) {
    runs.push_back(one.run());
    runs.back().first = all.blocks;
    all.blocks += runs.back().blocks;
  }
  const auto table = table_in_space<Exec>("runs", runs);
  all.table = table;
  for (int t = 1; t <= 3; ++t) {
    const AdamWStep rule{0.02, 0.9, 0.95, 1e-8, 0.1, 1 - std::pow(0.9, t), 1 - std::pow(0.95, t), 0.5};
    for (std::size_t i = 0; i < each.size(); ++i) {
      each[i].set_gradient(static_cast<unsigned>(t));
      together[i].set_gradient(static_cast<unsigned>(t));
      each[i].step(rule);
    }
    adamw<Exec, T>(Exec(), rule, all);
  }
  for (std::size_t i = 0; i < each.size(); ++i) {
    expect_same(values_of(together[i].master), values_of(each[i].master), "master weights");
    expect_same(values_of(together[i].weight), values_of(each[i].weight), "weights");
    expect_same(together[i].decoded(false), each[i].decoded(false), "momentum");
    expect_same(together[i].decoded(true), each[i].decoded(true), "second moments");
  }
}

TYPED_TEST(CodedAdamW, ZerosStayZerosAndNothingIsTaken) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  const Coded<Exec, T> run(2, 40, 16), none(0, 40, 16);
  const Array before = values_of(run.master);
  run.step(AdamWStep{});
  expect_same(values_of(run.master), before, "weights");
  expect_same(run.decoded(true), Array(2, 40), "second moments");
  EXPECT_NO_THROW(none.step(AdamWStep{}));
  const Coded<Exec, T> wide(1, 8, largest_moment_block + 1);
  EXPECT_THROW(wide.step(AdamWStep{}), Error);
}

TYPED_TEST(CodedAdamW, ANumberThatIsNoneStaysInItsScaleAndRaisesTheFlag) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  const Coded<Exec, T> run(2, 32, 16);
  Array g(1, 64, 1.0);
  g(0, 20) = std::nan("");
  set_values(run.gradient, g);
  const Kokkos::View<double, typename Exec::memory_space> flag("flag");
  AdamWStep rule;
  rule.lr = 1e-3;
  rule.nonfinite = flag.data();
  run.step(rule);
  const Array scales = values_of(run.m_scale);
  EXPECT_TRUE(std::isnan(scales(0, 1)));
  EXPECT_TRUE(std::isfinite(scales(0, 0)) && std::isfinite(scales(1, 0)));
  const auto raised = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), flag);
  EXPECT_EQ(raised(), 1);
}

template <class Space>
class CodedDirection : public testing::Test {};
TYPED_TEST_SUITE(CodedDirection, StreamSpaces, SpaceNames);

// GaLore's step: as AdamW's from the decoded moments of the one before; what is coded after it is tested above.
TYPED_TEST(CodedDirection, ComesFromMomentsBeforeTheyAreRounded) {
  const Coded<TypeParam, float> run(5, 70, 32);
  for (int t = 1; t <= 3; ++t) {
    run.set_gradient(static_cast<unsigned>(t));
    const Array g = values_of(run.gradient);
    Array m = run.decoded(false), v = run.decoded(true), want(1, 350);
    adam_direction<TypeParam>(TypeParam(), {0.9, 0.999, 1e-6}, 0.5, run.gradient, run.moments(), run.master);
    for (std::size_t i = 0; i < want.values.size(); ++i) {
      const double x = 0.5 * g.values[i];
      m.values[i] += 0.1 * (x - m.values[i]);
      v.values[i] += 0.001 * (x * x - v.values[i]);
      want.values[i] = m.values[i] / (std::sqrt(v.values[i]) + 1e-6);
    }
    expect_close(values_of(run.master), want, 4 * few_roundings, "direction");
    const Array kept = run.decoded(true);
    for (const double value : kept.values) EXPECT_GT(value, 0);
  }
}

// Both forms run on the host, on two matrices of a table.
TEST(CodedMomentsForms, GiveTheSameBits) {
  using Matrices = std::vector<Coded<Host, float>>;
  const Matrices threads = {{3, 300, 64}, {2, 70, 64}}, teams = {{3, 300, 64}, {2, 70, 64}};
  const auto body = [](const CodedRun<float>& of, std::size_t at, std::size_t n, float* m, float* v) {
    for (std::size_t i = 0; i < n; ++i) {
      m[i] = 0.5f * m[i] + of.gradient[at + i];
      v[i] = std::fabs(0.25f * v[i] + of.gradient[at + i]);
      of.master[at + i] += m[i] - v[i];
    }
  };
  for (unsigned t = 1; t <= 3; ++t) {
    for (const Matrices* side : {&threads, &teams}) {
      for (const auto& one : *side) one.set_gradient(t);
      CodedRun<float> runs[] = {side->front().run(), side->back().run()};
      runs[1].first = runs[0].blocks;
      const moments::MatrixOfTable<CodedRun<float>> find{runs, 2};
      const std::size_t blocks = runs[0].blocks + runs[1].blocks;
      if (side == &threads)
        moments::by_thread<float>("threads", Host(), 64, blocks, find, body);
      else
        moments::by_team<float>("teams", Host(), 64, blocks, find, body);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      expect_same(values_of(teams[i].master), values_of(threads[i].master), "values");
      expect_same(values_of(teams[i].m), values_of(threads[i].m), "codes");
      expect_same(values_of(teams[i].v), values_of(threads[i].v), "codes");
      expect_same(values_of(teams[i].m_scale), values_of(threads[i].m_scale), "scales");
      expect_same(values_of(teams[i].v_scale), values_of(threads[i].v_scale), "scales");
    }
  }
}

}  // namespace
}  // namespace sestina::reference
