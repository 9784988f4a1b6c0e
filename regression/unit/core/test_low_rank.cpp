// GaLore and APOLLO beyond their golden files: full rank, random projectors, moments and projectors in few bits.
#include "regression/unit/core/matrix_rig.hpp"

namespace sestina::reference {
namespace {

template <class Space>
class GaLore : public testing::Test {};
TYPED_TEST_SUITE(GaLore, StreamSpaces, SpaceNames);
template <class Space>
class Apollo : public testing::Test {};
TYPED_TEST_SUITE(Apollo, StreamSpaces, SpaceNames);

// The projector of full rank is orthogonal. While it stays, the first update is G with all singular values equal.
TYPED_TEST(GaLore, FullRankFirstUpdateKeepsSingularVectors) {
  for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{9, 5}, {5, 9}}) {
    MatrixRig<TypeParam> rig("galore", rows, cols, {{"rank", 5}, {"scale", 1}}, {}, 100);
    const Array g = gradient_at(rows, cols, 1);
    rig.step(g);
    const Array p = rig.field("projector"), wide = rows > cols ? p : transposed(p);
    const Array gram = product(wide, transposed(wide));
    for (std::size_t i = 0; i < 5; ++i)
      for (std::size_t j = 0; j < 5; ++j) EXPECT_NEAR(gram(i, j), i == j ? 1 : 0, 1e-6);
    // The entry of largest size of each vector is positive.
    for (std::size_t i = 0; i < 5; ++i) {
      double largest = 0;
      for (std::size_t j = 0; j < wide.cols; ++j)
        if (std::abs(wide(i, j)) > std::abs(largest)) largest = wide(i, j);
      EXPECT_GT(largest, 0);
    }
  }
}

TYPED_TEST(GaLore, MovesWithinItsSubspace) {
  MatrixRig<TypeParam> rig("galore", 12, 8, {{"rank", 2}}, {}, 100);
  for (unsigned t = 0; t < 5; ++t) {
    const Array w = rig.step(gradient_at(12, 8, t));
    const Array move = blend(1, w, -1, rig.weight), p = rig.field("projector");
    const Array kept = product(product(move, transposed(p)), p);  // of its rows
    expect_close(kept, move, 1e-3, "movement");                   // a difference of weights of size 1
  }
}

// The first step is that of 32 bits, as it sees moments that were not rounded; later ones are near it.
TYPED_TEST(GaLore, MomentsInEightBits) {
  for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{24, 16}, {16, 24}}) {
    MatrixRig<TypeParam> full("galore", rows, cols, {{"rank", 4}}, {}, 4),
        coded("galore", rows, cols, {{"rank", 4}}, {}, 4);
    coded.options.state_bits = 8;
    coded.options.state_block = 16;
    coded.optimizer = make_matrix_optimizer<TypeParam>(TypeParam(), coded.options, {"/optimizer/w", rows, cols, 0});
    EXPECT_FALSE(coded.optimizer->state().has("momentum"));
    EXPECT_EQ(coded.optimizer->state().codes("momentum_codes").size(), 4 * 24u);
    std::size_t bytes = 0;
    for (const StateField& field : coded.optimizer->state().fields()) bytes += field.bytes();
    EXPECT_EQ(bytes, coded.optimizer->state().bytes());
    EXPECT_LT(bytes, full.optimizer->state().bytes());
    for (unsigned t = 0; t < 10; ++t) {
      const Array g = gradient_at(rows, cols, t), before = full.weight;
      const Array a = full.step(g), b = coded.step(g);
      const Array apart = blend(1, a, -1, b), moved = blend(1, a, -1, before);
      const double off = std::sqrt(inner(apart, apart) / inner(moved, moved));
      EXPECT_LT(off, t == 0 ? 1e-6 : 0.05) << t;
      EXPECT_GT(off, t == 0 ? -1 : 0) << t;
    }
  }
}

// The projector that is in the state, out of its codes; numbers of a group lie on a grid of its own.
template <class Space>
Array decoded_projector(MatrixRig<Space>& rig, std::size_t rows, std::size_t cols, int bits) {
  MatrixState<Space>& state = rig.optimizer->state();
  const auto codes = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.codes("projector_codes"));
  const auto scales = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.vector("projector_scales"));
  const std::uint8_t* const zeros = codes.data() + rows * cols * static_cast<std::size_t>(bits) / 8;
  Array p(rows, cols);
  for (std::size_t i = 0; i < rows * cols; ++i) {
    const int byte = codes.data()[bits == 8 ? i : i / 2], code = bits == 8 ? byte : (i % 2 ? byte >> 4 : byte & 15);
    p.values[i] = double(float(code - zeros[i / 256]) * scales.data()[i / 256]);
  }
  return p;
}

// Two rigs with the same gradients, one of which keeps its projector in fewer bits: it holds the other's first one,
// rounded to a grid, moves within the subspace of what it holds from the first update on, and never holds the whole.
template <class Space>
void expect_coded_projector(const std::string& kind, std::size_t rows, std::size_t cols, int bits) {
  const std::string what = kind + ", " + std::to_string(bits) + " bits, " + std::to_string(rows) + " rows";
  MatrixRig<Space> whole(kind, rows, cols, {{"rank", 10}}, {}, 4),
      coded(kind, rows, cols, {{"rank", 10}, {"projector_bits", bits}}, {}, 4);
  const bool right = rows >= cols;
  const std::size_t n = 10 * std::min(rows, cols), p_rows = right ? 10 : rows, p_cols = right ? cols : 10;
  EXPECT_FALSE(coded.optimizer->state().has("projector")) << what;
  EXPECT_EQ(coded.optimizer->state().codes("projector_codes").size(),
            n * static_cast<std::size_t>(bits) / 8 + (n + 255) / 256)
      << what;
  std::size_t bytes = 0;
  for (const StateField& field : coded.optimizer->state().fields()) bytes += field.bytes();
  EXPECT_EQ(bytes, coded.optimizer->state().bytes());
  EXPECT_EQ(whole.optimizer->state().bytes() - bytes,
            4 * n - n * static_cast<std::size_t>(bits) / 8 - 5 * ((n + 255) / 256))
      << what;

  const Array before = coded.weight, after = coded.step(gradient_at(rows, cols, 1));
  whole.step(gradient_at(rows, cols, 1));
  const Array p = decoded_projector(coded, p_rows, p_cols, bits), full = whole.field("projector");
  double most = 0;
  for (const double x : full.values) most = std::max(most, std::abs(x));
  const double step = 2 * most / ((1 << bits) - 1);  // the widest a range can be, by its steps
  for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(p.values[i], full.values[i], step) << what;
  EXPECT_NE(p.values, full.values) << what;
  if (kind != "galore") return;
  const Array move = blend(1, after, -1, before), side = right ? p : transposed(p),
              rows_of = right ? move : transposed(move);
  const Array basis = orthonormalized(transposed(side));  // of the rows of P
  const Array kept = product(product(rows_of, basis), transposed(basis));
  expect_close(kept, rows_of, 1e-3, what.c_str());
}

TYPED_TEST(GaLore, ProjectorsInFewerBits) {
  for (const int bits : {8, 4}) {
    expect_coded_projector<TypeParam>("galore", 48, 40, bits);
    expect_coded_projector<TypeParam>("galore", 40, 48, bits);
  }
}
TYPED_TEST(Apollo, ProjectorsInFewerBits) {
  for (const int bits : {8, 4}) {
    expect_coded_projector<TypeParam>("apollo", 48, 40, bits);
    expect_coded_projector<TypeParam>("apollo", 40, 48, bits);
  }
}

// A refresh puts new codes in place, an update between refreshes leaves them, and in 8 bits the run stays near that of
// 32 bits.
TYPED_TEST(GaLore, CodedProjectorsAreRenewed) {
  MatrixRig<TypeParam> whole("galore", 24, 16, {{"rank", 4}}, {}, 3),
      coded("galore", 24, 16, {{"rank", 4}, {"projector_bits", 8}}, {}, 3);
  Array last(4, 16), before = whole.weight;
  for (unsigned t = 0; t < 9; ++t) {
    const Array g = gradient_at(24, 16, t), a = whole.step(g), b = coded.step(g);
    const Array p = decoded_projector(coded, 4, 16, 8);
    EXPECT_EQ(p.values != last.values, t % 3 == 0) << t;
    last = p;
    const Array apart = blend(1, a, -1, b), moved = blend(1, a, -1, before);
    EXPECT_LT(std::sqrt(inner(apart, apart) / inner(moved, moved)), 0.05) << t;
  }
}

// By hand: gradients whose first singular vector stays within 5 degrees of the one before, with refreshes every other
// update. The sixth refresh is the fifth with a cosine and doubles the period; so does each one after it. Where
// vectors turn by 90 degrees each time nothing changes, and the sign of a vector never counts.
TYPED_TEST(GaLore, LazyProjectorsAreRenewedHalfAsOftenWhereTheyStay) {
  const auto refreshed = [](std::size_t rows, std::size_t cols, const auto& degrees, const KeyValues& numbers) {
    KeyValues all = {{"rank", 3}, {"lazy_cosine", 0.4}};
    all.insert(all.end(), numbers.begin(), numbers.end());
    MatrixRig<TypeParam> rig("galore", rows, cols, all, {}, 2);
    std::vector<int> when;
    std::int64_t refreshes = 0;
    for (int t = 0; t < 60; ++t) {
      // The leading vector of the shorter side turns in the plane of its first two axes.
      const double angle = degrees(refreshes) * 3.14159265358979 / 180;
      Array g(rows, cols);
      for (std::size_t i = 2; i < std::min(rows, cols); ++i) g(i, i) = 0.1 / static_cast<double>(i);
      const bool right = rows >= cols;
      for (std::size_t i = 0; i < 2; ++i) {
        const double x = i == 0 ? std::cos(angle) : std::sin(angle);
        (right ? g(0, i) : g(i, 0)) = x;
      }
      rig.step(g);
      const std::int64_t now = rig.optimizer->state().counter("refreshes");
      if (now != refreshes) when.push_back(t);
      refreshes = now;
    }
    return when;
  };
  const auto slowly = [](std::int64_t n) { return 5.0 * static_cast<double>(n); };
  const auto at_once = [](std::int64_t n) { return 90.0 * static_cast<double>(n); };
  const auto flipping = [](std::int64_t n) { return n % 2 == 0 ? -44.0 : -46.0; };  // another entry is the largest
  const std::vector<int> fewer = {0, 2, 4, 6, 8, 10, 12, 16, 32};
  for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{12, 8}, {8, 12}}) {
    EXPECT_EQ(refreshed(rows, cols, slowly, {}), fewer);
    EXPECT_EQ(refreshed(rows, cols, slowly, {{"projector_bits", 8}}), fewer);
    EXPECT_EQ(refreshed(rows, cols, flipping, {}), fewer);
    EXPECT_EQ(refreshed(rows, cols, at_once, {}).size(), 30u);
    EXPECT_EQ(refreshed(rows, cols, slowly, {{"lazy_cosine", 1}}).size(), 30u);  // cos 5 degrees is below
  }
}

TYPED_TEST(Apollo, ProjectorsAreRandomByNameAndNumber) {
  const auto projector = [](const std::string& name, double seed, unsigned updates) {
    MatrixRig<TypeParam> rig("apollo", 64, 64, {{"rank", 32}, {"seed", seed}}, {}, 2, name);
    for (unsigned t = 0; t < updates; ++t) rig.step(gradient_at(64, 64, t));
    return rig.field("projector");
  };
  const Array first = projector("a", 1, 1);
  expect_same(projector("a", 1, 2), first, "projector of the second update");
  for (const Array& other : {projector("b", 1, 1), projector("a", 2, 1), projector("a", 1, 3)}) {
    const double cosine = inner(first, other) / std::sqrt(inner(first, first) * inner(other, other));
    EXPECT_LT(std::abs(cosine), 0.1);  // 1/sqrt(2048) is .022
  }
  EXPECT_NEAR(inner(first, first) / 2048, 1.0 / 32, 0.1 / 32);  // N(0, 1/r), 2048 entries
}

TYPED_TEST(Apollo, GivenProjectorsStay) {
  MatrixRig<TypeParam> rig("apollo", 8, 6, {{"rank", 2}}, {{"projector", "given"}}, 2);
  {
    const auto projector = rig.optimizer->state().write("projector");
    Kokkos::deep_copy(projector.view(), 0.5f);
  }
  for (unsigned t = 0; t < 5; ++t) rig.step(gradient_at(8, 6, t));
  expect_same(rig.field("projector"), Array(2, 6, 0.5), "projector");
}

// Each update is a row of the gradient times a factor; its norm grows by a hundredth at most.
TYPED_TEST(Apollo, ScalesRowsAndLimitsGrowth) {
  MatrixRig<TypeParam> rig("apollo", 12, 8, {{"rank", 4}}, {}, 100);
  Array before = rig.weight;
  double last = 0;
  for (unsigned t = 1; t <= 8; ++t) {
    const Array g = blend(double(t * t), gradient_at(12, 8, t), 0, Array(12, 8));
    const Array after = rig.step(g, 0.5), move = blend(1, after, -1, before);
    for (std::size_t i = 0; i < 12; ++i) {
      double dot = 0, gg = 0, mm = 0;
      for (std::size_t j = 0; j < 8; ++j) {
        dot += g(i, j) * move(i, j);
        gg += g(i, j) * g(i, j);
        mm += move(i, j) * move(i, j);
      }
      EXPECT_NEAR(dot / std::sqrt(gg * mm), -1, 1e-5) << "row " << i;
    }
    const double norm = rig.field("update_norm").values[0];
    if (t > 1) EXPECT_LE(norm, last * 1.01 * (1 + 1e-6));
    last = norm;
    before = after;
  }
}

}  // namespace
}  // namespace sestina::reference
