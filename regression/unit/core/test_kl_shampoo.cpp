// KL-Shampoo and KL-SOAP against plain references in double. Bases are taken over from the program after each was
// checked, because the signs of their columns are free.
#include "regression/unit/core/matrix_rig.hpp"

namespace sestina::reference {
namespace {

// KL-SOAP as in arXiv 2509.03378: the factors of KL-Shampoo, and Adam without bias correction in their bases.
struct PlainKlSoap {
  double beta1 = 0.9, beta2 = 0.98, beta = 0.98, eps = 1e-8;
  Array w, m, v, left, right, ql, qr;
  std::vector<double> left_values, right_values;

  PlainKlSoap(const Array& start, const Array& g, const Array& ql, const Array& qr)
      : w(start),
        m(g.rows, g.cols),
        v(g.rows, g.cols),
        left(blend(0, Array(g.rows, g.rows), (1 - beta) / double(g.cols), product(g, transposed(g)))),
        right(blend(0, Array(g.cols, g.cols), (1 - beta) / double(g.rows), product(transposed(g), g))),
        ql(ql),
        qr(qr),
        left_values(g.rows, 0.1),
        right_values(g.cols, 0.1) {}

  Array rotated(const Array& x) const { return product(product(transposed(ql), x), qr); }

  static void average(double beta, double floor, double count, const std::vector<double>& sums,
                      std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = std::max(floor, beta * values[i] + (1 - beta) * sums[i] / count);
  }

  void step(const Array& g, double lr) {
    m = blend(beta1, m, 1 - beta1, g);
    const Array h = rotated(g);
    Array d = rotated(m);
    for (std::size_t i = 0; i < v.values.size(); ++i) {
      v.values[i] = beta2 * v.values[i] + (1 - beta2) * h.values[i] * h.values[i];
      d.values[i] /= std::sqrt(v.values[i]) + eps;
    }
    w = blend(1, w, -lr, product(product(ql, d), transposed(qr)));

    Array a = product(g, qr), b = product(transposed(ql), g);
    std::vector<double> rows(g.rows), cols(g.cols);
    for (std::size_t i = 0; i < g.rows; ++i)
      for (std::size_t j = 0; j < g.cols; ++j) {
        a(i, j) /= std::sqrt(right_values[j]);
        b(i, j) /= std::sqrt(left_values[i]);
        rows[i] += h(i, j) * h(i, j) / right_values[j];
        cols[j] += h(i, j) * h(i, j) / left_values[i];
      }
    const auto n = double(g.cols), m_rows = double(g.rows);
    left = blend(beta, left, (1 - beta) / n, product(a, transposed(a)));
    right = blend(beta, right, (1 - beta) / m_rows, product(transposed(b), b));
    average(beta, 0.01, n, rows, left_values);  // inverse roots of sides up to 10 are clamped at 10
    average(beta, 0.01, m_rows, cols, right_values);
  }
};

template <class Space>
class KlSoap : public testing::Test {};
TYPED_TEST_SUITE(KlSoap, StreamSpaces, SpaceNames);
template <class Space>
class KlShampoo : public testing::Test {};
TYPED_TEST_SUITE(KlShampoo, StreamSpaces, SpaceNames);

TYPED_TEST(KlSoap, FollowsItsRule) {
  const std::size_t rows = 9, cols = 6;
  MatrixRig<TypeParam> rig("kl-soap", rows, cols, {}, {{"eigenvalue_start", "given"}}, 3);
  const Array first = gradient_at(rows, cols, 0);
  expect_same(rig.step(first), rig.weight, "weight after the first call");
  PlainKlSoap plain(rig.weight, first, rig.field("basis_left"), rig.field("basis_right"));
  for (unsigned t = 1; t <= 10; ++t) {
    const Array g = gradient_at(rows, cols, t);
    plain.step(g, 0.0625);
    // fp32 products of length 9, and divisions by roots that are small at first.
    expect_close(rig.step(g), plain.w, 5e-5, "weight");
    expect_close(rig.field("factor_left"), plain.left, 2e-5, "left factor");
    expect_close(rig.field("factor_right"), plain.right, 2e-5, "right factor");
    if (t % 3 != 0) continue;
    for (const bool is_left : {true, false}) {
      Array& q = is_left ? plain.ql : plain.qr;
      const Array got = rig.field(is_left ? "basis_left" : "basis_right");
      const Array want = signed_like(orthonormalized(product(is_left ? plain.left : plain.right, q)), got);
      expect_close(got, want, 2e-3, "basis");  // of columns whose part outside the ones before is small
      q = got;
    }
  }
}

// Eigenvalues that stay 1 and factors that stay 0: the bases cancel, momentum is left.
TYPED_TEST(KlShampoo, WithoutPreconditionerIsMomentum) {
  MatrixRig<TypeParam> rig("kl-shampoo", 12, 8, {{"factor_beta", 1}, {"initial_eigenvalue", 1}, {"eps", 0}},
                           {{"eigenvalue_start", "given"}});
  Array w = rig.weight, m(12, 8);
  rig.step(gradient_at(12, 8, 0));
  for (unsigned t = 1; t < 10; ++t) {
    const Array g = gradient_at(12, 8, t);
    m = blend(0.9, m, 0.1, g);
    w = blend(1, w, -0.0625, m);
    expect_close(rig.step(g), w, 1e-5, "weight");
  }
}

// A larger gradient gives larger eigenvalues until direction and gradient have scales of their own: two sides of
// exponent 1/2 make L R the mean square of the gradient.
TYPED_TEST(KlShampoo, EigenvaluesReachTheScaleOfTheGradient) {
  for (const double size : {0.5, 8.0}) {
    MatrixRig<TypeParam> rig("kl-shampoo", 1, 1, {{"factor_beta", 0.8}}, {}, 5);
    for (int t = 0; t < 200; ++t) rig.step(Array(1, 1, size), 0);
    EXPECT_NEAR(rig.field("eigenvalue_left").values[0] * rig.field("eigenvalue_right").values[0], size * size,
                1e-3 * size * size);
  }
}

// Both sides at the root mean square of the first gradient, the factors whitened by it.
TYPED_TEST(KlShampoo, StartsAtTheScaleOfTheFirstGradient) {
  for (const char* kind : {"kl-shampoo", "kl-soap"}) {
    MatrixRig<TypeParam> rig(kind, 9, 6);
    const Array g = gradient_at(9, 6, 0);
    rig.step(g, 0.0625, 0, 0.25);
    const double scale = 0.25 * std::sqrt(inner(g, g) / 54);
    for (const char* side : {"eigenvalue_left", "eigenvalue_right"})
      for (const double value : rig.field(side).values) EXPECT_NEAR(value, scale, 1e-6 * scale) << kind;
    const double weight = 0.02 * 0.25 * 0.25 / scale;
    expect_close(rig.field("factor_left"), blend(0, Array(9, 9), weight / 6, product(g, transposed(g))), 1e-6, "left");
    expect_close(rig.field("factor_right"), blend(0, Array(6, 6), weight / 9, product(transposed(g), g)), 1e-6,
                 "right");
  }
}

// So the size of the gradient does not matter, from the first update on (clamps aside, which are absolute). A power of
// two and exact roots of it: not a bit of the gradient's digits changes.
TYPED_TEST(KlShampoo, StartedFromTheGradientItsScaleCancels) {
  MatrixRig<TypeParam> small("kl-shampoo", 9, 6, {{"clamp", 0}, {"eps", 0}}),
      large("kl-shampoo", 9, 6, {{"clamp", 0}, {"eps", 0}}),
      given("kl-shampoo", 9, 6, {{"clamp", 0}, {"eps", 0}}, {{"eigenvalue_start", "given"}});
  for (unsigned t = 0; t < 12; ++t) {
    const Array g = gradient_at(9, 6, t), w = small.step(g);
    expect_close(large.step(blend(1024, g, 0, g)), w, 1e-5, "weight");
    if (t > 0)
      EXPECT_GT(largest_difference(given.step(g), w), 1e-3);
    else
      given.step(g);
  }
}

// Sorted columns take their eigenvalues along.
TYPED_TEST(KlShampoo, SortingMovesEigenvaluesWithTheirColumns) {
  for (const char* kind : {"kl-shampoo", "kl-soap"}) {
    MatrixRig<TypeParam> sorted(kind, 8, 6, {{"sort", 1}}, {}, 4), plain(kind, 8, 6, {}, {}, 4);
    for (unsigned t = 0; t <= 4; ++t) {  // up to and with the first refresh
      const Array g = gradient_at(8, 6, t);
      expect_same(sorted.step(g), plain.step(g), kind);
    }
    std::vector<double> a = sorted.field("eigenvalue_left").values, b = plain.field("eigenvalue_left").values;
    const Array q = sorted.field("basis_left"), k = sorted.field("factor_left");
    EXPECT_NE(a, b) << kind;
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    EXPECT_EQ(a, b) << kind;
  }
}

}  // namespace
}  // namespace sestina::reference
