// SOAP and basis rotation where they come down to something simpler, and the switches that no golden file turns.
#include "core/optimizer/methods/two_sided.hpp"
#include "regression/unit/core/matrix_rig.hpp"

namespace sestina::reference {
namespace {

// fp32 against double over a dozen updates of order 1.
constexpr double tolerance = 2e-5;

// Adam with eps after the uncorrected root, decay after the update.
struct PlainAdam {
  double beta1 = 0.95, beta2 = 0.95, eps = 1e-8;
  Array w, m, v;
  int t = 0;
  explicit PlainAdam(const Array& start) : w(start), m(start.rows, start.cols), v(start.rows, start.cols) {}
  void step(const Array& g, double lr, double weight_decay) {
    ++t;
    const double rate = lr * std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t));
    for (std::size_t i = 0; i < w.values.size(); ++i) {
      m.values[i] += (1 - beta1) * (g.values[i] - m.values[i]);
      v.values[i] += (1 - beta2) * (g.values[i] * g.values[i] - v.values[i]);
      w.values[i] -= rate * m.values[i] / (std::sqrt(v.values[i]) + eps);
      w.values[i] *= 1 - lr * weight_decay;
    }
  }
};

template <class Space>
class Soap : public testing::Test {};
TYPED_TEST_SUITE(Soap, StreamSpaces, SpaceNames);
template <class Space>
class BasisRotation : public testing::Test {};
TYPED_TEST_SUITE(BasisRotation, StreamSpaces, SpaceNames);
template <class Space>
class RotatedStart : public testing::Test {};
TYPED_TEST_SUITE(RotatedStart, StreamSpaces, SpaceNames);
template <class Space>
class RotatedWorkspace : public testing::Test {};
TYPED_TEST_SUITE(RotatedWorkspace, StreamSpaces, SpaceNames);

// A basis of 1 x 1 is +1 or -1: SOAP of a row with its long side left alone is Adam.
TYPED_TEST(Soap, OfOneRowIsAdam) {
  for (const char* first : {"skip", "use"}) {
    MatrixRig<TypeParam> soap("soap", 1, 16, {}, {{"sides", "smaller"}, {"first_step", first}});
    EXPECT_FALSE(soap.optimizer->state().has("basis_right"));
    PlainAdam adam(soap.weight);
    for (unsigned t = 0; t < 12; ++t) {
      const Array g = gradient_at(1, 16, t), w = soap.step(g, 0.0625, 0.125);
      if (t > 0 || first == std::string("use")) adam.step(g, 0.0625, 0.125);
      expect_close(w, adam.w, tolerance, "weight");
    }
  }
}

TYPED_TEST(Soap, FactorsOfIntegerGradientsAreExact) {
  for (const char* order : {"after", "before"}) {
    MatrixRig<TypeParam> soap("soap", 9, 6, {{"factor_beta", 0.5}}, {{"factor_update", order}}, 100);
    Array left(9, 9), right(6, 6);
    for (unsigned t = 0; t < 10; ++t) {  // halves of integers below 2^6: 24 bits hold them
      const Array g = integers_at(9, 6, t);
      soap.step(g);
      left = blend(0.5, left, 0.5, product(g, transposed(g)));
      right = blend(0.5, right, 0.5, product(transposed(g), g));
    }
    expect_same(soap.field("factor_left"), left, "left factor");
    expect_same(soap.field("factor_right"), right, "right factor");
  }
}

TYPED_TEST(Soap, CorrectedFactorsAreMeans) {
  for (const char* first : {"skip", "use"}) {
    MatrixRig<TypeParam> soap("soap", 6, 4, {{"factor_bias_correction", 1}}, {{"first_step", first}}, 100);
    const Array g = integers_at(6, 4, 1);
    for (int t = 0; t < 5; ++t) {
      soap.step(g);
      expect_close(soap.field("factor_right"), product(transposed(g), g), 1e-6, "right factor");
    }
  }
}

// Keeping the rotated momentum next to the other one saves products and changes nothing but roundings: over refreshes,
// with one side or both, and started from a state without it.
TYPED_TEST(Soap, RotatedMomentumIsTheSame) {
  for (const char* sides : {"smaller", "both"}) {
    MatrixRig<TypeParam> plain("soap", 12, 8, {}, {{"sides", sides}}),
        kept("soap", 12, 8, {}, {{"sides", sides}, {"momentum_basis", "rotated"}});
    for (unsigned t = 0; t < 12; ++t) {
      if (t == 5) kept.optimizer->state().counter("momentum_in_basis") = 0;
      const Array g = gradient_at(12, 8, t);
      expect_close(kept.step(g), plain.step(g), tolerance, "weight");
    }
    expect_same(kept.field("momentum"), plain.field("momentum"), "momentum");
  }
}

TYPED_TEST(Soap, RotatedMomentumOfBasisRotationIsTheSame) {
  for (const char* source : {"2nd", "1st"})
    for (const char* geometry : {"bilateral", "unilateral"}) {
      const Words words = {{"source", source}, {"geometry", geometry}};
      Words rotated = words;
      rotated.emplace_back("momentum_basis", "rotated");
      MatrixRig<TypeParam> plain("basis-rotation", 12, 8, {}, words), kept("basis-rotation", 12, 8, {}, rotated);
      for (unsigned t = 0; t < 23; ++t) {  // over two refreshes
        const Array g = gradient_at(12, 8, t);
        expect_close(kept.step(g), plain.step(g), tolerance, "weight");
      }
      EXPECT_EQ(kept.optimizer->state().counter("momentum_in_basis"), 1);
      expect_same(kept.field("momentum"), plain.field("momentum"), "momentum");
    }
}

// In bf16 a product reads rounded operands: it is that of the rounded matrices but for fp32 sums of k terms.
TYPED_TEST(Soap, ProductsInBf16AreThoseOfRoundedOperands) {
  constexpr std::size_t m = 40, n = 24;
  const Array a = rounded<float>(random_array(m, n, 3)), b = rounded<float>(random_array(m, m, 4));
  const Array a16 = rounded<bf16>(a), b16 = rounded<bf16>(b);
  const auto kept = [](const Array& x) {
    Kokkos::View<float**, Kokkos::LayoutRight, typename TypeParam::memory_space> y("x", x.rows, x.cols);
    set_values(y, x);
    return y;
  };
  const auto a_view = kept(a), b_view = kept(b), c_view = kept(Array(m, n)), g_view = kept(Array(n, n));
  using View = Matrix<float, TypeParam>;
  const View x(a_view.data(), m, n), y(b_view.data(), m, m), c(c_view.data(), m, n), g(g_view.data(), n, n);
  for (const MatmulPrecision precision : {MatmulPrecision::fp32, MatmulPrecision::bf16}) {
    const bool in_bf16 = precision == MatmulPrecision::bf16;
    const auto declared =
        bytes_taken<TypeParam>([&](auto& counter) { declare_products<TypeParam>(counter, precision, m, n); });
    Stream<TypeParam> stream{TypeParam(), Gemm<TypeParam>(TypeParam(), true), Workspace<TypeParam>(declared)};
    const Products<TypeParam> products{stream, precision};
    products.multiply(Op::transpose, Op::none, 2, y, x, 0, c);
    products.symmetric(Op::transpose, 1, x, 0, g);
    const Array exact = product(transposed(in_bf16 ? b16 : b), in_bf16 ? a16 : a);
    const Array gram = product(transposed(in_bf16 ? a16 : a), in_bf16 ? a16 : a);
    constexpr double sums = 4 * double(m) * 6e-8;  // k eps of fp32, times the size of entries (about 1) and of alpha
    expect_close(values_of(c_view), blend(2, exact, 0, exact), sums, "product");
    expect_close(values_of(g_view), gram, sums, "symmetric");
    EXPECT_EQ(stream.workspace.peak(), declared);
  }
}

// Every kind that has the key uses it: a path of a dozen updates is another one, and stays near that in fp32. eps is
// large because basis rotation starts in the basis of the first gradient, where all but a diagonal is rounding, of
// which Adam makes steps as large as any.
TYPED_TEST(Soap, UpdatesInBf16StayNearThoseInFp32) {
  for (const auto& [kind, words] : std::vector<std::pair<std::string, Words>>{{"soap", {}},
                                                                              {"soap", {{"momentum_basis", "rotated"}}},
                                                                              {"basis-rotation", {}},
                                                                              {"basis-rotation", {{"source", "1st"}}},
                                                                              {"kl-soap", {}},
                                                                              {"kl-shampoo", {}},
                                                                              {"soap-muon", {}},
                                                                              {"shampoo", {}}}) {
    Words in_bf16 = words;
    in_bf16.emplace_back("matmul_precision", "bf16");
    const KeyValues numbers = {{"eps", 0.01}};
    MatrixRig<TypeParam> exact(kind, 24, 16, numbers, words), coarse(kind, 24, 16, numbers, in_bf16);
    Array at, near;
    for (unsigned t = 0; t < 12; ++t) {
      const Array g = gradient_at(24, 16, t);
      at = exact.step(g);
      near = coarse.step(g);
    }
    const Array apart = blend(1, near, -1, at), moved = blend(1, at, -1, exact.weight);
    const double share = std::sqrt(inner(apart, apart) / inner(moved, moved));
    EXPECT_GT(share, 1e-5) << kind;
    // Roundings of 2^-9 in each of four products in turn, and small numbers that Adam makes as large as others.
    EXPECT_LT(share, 0.1) << kind;
  }
}

TYPED_TEST(Soap, NormalizedUpdateHasRmsOne) {
  MatrixRig<TypeParam> soap("soap", 12, 8, {{"normalize", 1}, {"bias_correction", 0}});
  Array before = soap.weight;
  for (unsigned t = 0; t < 6; ++t) {
    const Array after = soap.step(gradient_at(12, 8, t), 0.25);
    const Array move = blend(1, after, -1, before);
    const double rms = std::sqrt(inner(move, move) / 96);
    EXPECT_NEAR(rms, t == 0 ? 0 : 0.25, 1e-6);
    before = after;
  }
}

// Sorting and permuting undo one another: with a second moment that follows its columns, what matters is the set of
// columns. Left where it was, it divides other directions.
TYPED_TEST(Soap, PermutingMatters) {
  MatrixRig<TypeParam> follows("soap", 8, 8, {{"permute_second_moment", 1}}),
      stays("soap", 8, 8, {{"permute_second_moment", 0}});
  double apart = 0;
  for (unsigned t = 0; t < 9; ++t) {
    const Array g = gradient_at(8, 8, t);
    const Array move = blend(1, follows.step(g), -1, stays.step(g));
    apart = std::sqrt(inner(move, move));
  }
  EXPECT_GT(apart, 0.01);
}

TYPED_TEST(Soap, EveryBasisStaysOrthogonal) {
  for (const auto& [kind, words] :
       std::vector<std::pair<std::string, Words>>{{"soap", {}},
                                                  {"soap", {{"basis_refresh", "eigh"}}},
                                                  {"soap", {{"sides", "smaller"}}},
                                                  {"basis-rotation", {{"source", "1st"}}},
                                                  {"basis-rotation", {{"source", "1st"}, {"dialect", "release"}}},
                                                  {"kl-shampoo", {}},
                                                  {"soap-muon", {}},
                                                  {"kl-soap", {}}})
    for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{33, 7}, {7, 33}, {12, 12}}) {
      MatrixRig<TypeParam> rig(kind, rows, cols, {}, words, 2);
      for (unsigned t = 0; t < 9; ++t) rig.step(gradient_at(rows, cols, t));
      for (const char* name : {"basis_left", "basis_right"}) {
        if (!rig.optimizer->state().has(name)) continue;
        const Array q = rig.field(name), gram = product(transposed(q), q);
        for (std::size_t i = 0; i < q.rows; ++i)
          for (std::size_t j = 0; j < q.rows; ++j)
            EXPECT_NEAR(gram(i, j), i == j ? 1 : 0, 1e-5) << kind << " " << name << " " << rows << " x " << cols;
      }
    }
}

// A given basis of the identity and no refresh: Adam itself, for every source, side and dialect.
TYPED_TEST(BasisRotation, InTheStandardBasisIsAdam) {
  for (const char* source : {"1st", "2nd"})
    for (const char* geometry : {"unilateral", "bilateral"}) {
      MatrixRig<TypeParam> rig("basis-rotation", 6, 9, {}, {{"source", source}, {"geometry", geometry}}, 100);
      for (const char* name : {"basis_left", "basis_right"}) {
        if (!rig.optimizer->state().has(name)) continue;
        const auto q = rig.optimizer->state().write(name);
        set_values(q.view(), identity(q.view().extent(0)));
      }
      rig.optimizer->state().counter("started") = 1;
      PlainAdam adam(rig.weight);
      adam.beta1 = 0.9;
      adam.beta2 = 0.999;
      for (unsigned t = 0; t < 12; ++t) {
        const Array g = gradient_at(6, 9, t), w = rig.step(g);
        adam.step(g, 0.0625, 0);
        expect_close(w, adam.w, tolerance, "weight");
      }
    }
}

// 1/2 tr W^T H W after 500 updates with gradients H W that are `delay` updates old, the rate falling to 0.
template <class Space>
double delayed_quadratic(const Array& h, const Array& start, int delay, MatrixRig<Space>& rig) {
  constexpr int updates = 500;
  std::vector<Array> path{start};
  rig.set_master(start);
  for (int t = 0; t < updates; ++t)
    path.push_back(rig.step(rounded<float>(product(h, path[static_cast<std::size_t>(std::max(0, t - delay))])),
                            0.02 * (1 - double(t) / updates)));
  double loss = 0;
  const Array &w = path.back(), g = product(h, w);
  for (std::size_t i = 0; i < w.values.size(); ++i) loss += 0.5 * w.values[i] * g.values[i];
  return loss;
}

// The key experiment of arXiv 2602.03515 on a quadratic whose eigenvectors are no axes, eigenvalues 1 to 100: Adam
// zigzags, the more so under delay, and in the eigenbasis it is Adam on the diagonal.
TYPED_TEST(BasisRotation, InTheEigenbasisMakesARotatedQuadraticADiagonalOne) {
  constexpr std::size_t d = 16, n = 4;
  std::vector<double> eigenvalues(d);
  for (std::size_t i = 0; i < d; ++i) eigenvalues[i] = std::pow(100.0, double(i) / double(d - 1));
  const Array axes = random_basis(d, 3), start = random_array(d, n, 5);
  const Array aligned = diagonal(eigenvalues), rotated = with_eigenvalues(axes, eigenvalues);
  const auto in_basis = [&](const Array& basis, const Array& h, const Array& from, int delay) {
    MatrixRig<TypeParam> rig("basis-rotation", d, n, {}, {}, 1000);
    const auto left = rig.optimizer->state().write("basis_left"), right = rig.optimizer->state().write("basis_right");
    set_values(left.view(), basis);
    set_values(right.view(), identity(n));
    rig.optimizer->state().counter("started") = 1;
    return delayed_quadratic(h, from, delay, rig);
  };
  double before = 0;
  for (const int delay : {0, 16}) {
    const double plain = in_basis(identity(d), rotated, product(axes, start), delay);
    const double diagonal_one = in_basis(identity(d), aligned, start, delay);
    const double turned = in_basis(axes, rotated, product(axes, start), delay);
    EXPECT_GT(plain, 5 * diagonal_one) << delay;
    EXPECT_GT(plain, 2 * before) << delay;                           // what delay costs where the axes are wrong
    EXPECT_NEAR(turned, diagonal_one, 0.1 * diagonal_one) << delay;  // signs of small gradients round
    before = plain;
  }
}

// Zeros before the first gradient change nothing, not even a counter.
TYPED_TEST(RotatedStart, WaitsForAGradient) {
  for (const char* kind : {"soap", "basis-rotation", "kl-shampoo", "kl-soap", "galore", "apollo"}) {
    MatrixRig<TypeParam> waits(kind, 8, 6), starts(kind, 8, 6);
    for (int t = 0; t < 2; ++t) expect_same(waits.step(Array(8, 6)), waits.weight, kind);
    EXPECT_EQ(waits.optimizer->state().counter("started"), 0) << kind;
    for (unsigned t = 0; t < 5; ++t) {
      const Array g = gradient_at(8, 6, t);
      expect_same(waits.step(g), starts.step(g), kind);
    }
    EXPECT_EQ(waits.optimizer->state().counter("updates"), starts.optimizer->state().counter("updates")) << kind;
  }
}

// What is asked for is used: with one cache line less the update does not run. (First bases from a Gram matrix may need
// a decomposition more than they do here, and GaLore's are sized for both sides and made for one.)
TYPED_TEST(RotatedWorkspace, IsAsLargeAsItMustBe) {
  const auto run = [](auto&& rig) {
    for (unsigned t = 0; t < 6; ++t) rig.step(gradient_at(31, 12, t));
  };
  for (const std::string kind : {"soap", "soap-muon", "basis-rotation", "kl-shampoo", "kl-soap", "apollo"}) {
    EXPECT_NO_THROW(run(MatrixRig<TypeParam>(kind, 31, 12))) << kind;
    const Words words = kind == "apollo" ? Words{} : Words{{"basis_first", "svd"}};
    EXPECT_NO_THROW(run(MatrixRig<TypeParam>(kind, 31, 12, {}, words))) << kind;
    EXPECT_THROW(run(MatrixRig<TypeParam>(kind, 31, 12, {}, words, 3, "w", Workspace<TypeParam>::alignment)), Error)
        << kind;
  }
}

}  // namespace
}  // namespace sestina::reference
