// SOAP-Muon against its published rule, written out in double; where it comes down to Muon; the keys of its directions.
#include "core/optimizer/methods/soap_muon/soap_muon.hpp"

#include <numeric>

#include "regression/unit/core/keys_by_name.hpp"
#include "regression/unit/core/matrix_rig.hpp"

namespace sestina::reference {
namespace {

// ||X X^T||^(1/2), Frobenius norms.
double gram_norm(const Array& x) {
  const Array gram = x.rows <= x.cols ? product(x, transposed(x)) : product(transposed(x), x);
  return std::sqrt(std::sqrt(inner(gram, gram)));
}

// Newton-Schulz after division by the gram norm; a tall matrix by its transpose.
Array orthogonalised(const Array& u, const std::vector<NewtonSchulzStep>& steps, double eps) {
  if (u.rows > u.cols) return transposed(orthogonalised(transposed(u), steps, eps));
  Array x = blend(1 / std::max(gram_norm(u), eps), u, 0, u);
  for (const NewtonSchulzStep& step : steps) {
    const Array a = product(x, transposed(x)), p = blend(step.b, a, step.c, product(a, a));
    x = blend(step.a, x, 1, product(p, x));
  }
  return x;
}

// One side: the basis by falling size of its columns in the factor, made orthonormal after a product with it. `order`
// says where each column came from.
Array next_basis(const Array& factor, const Array& basis, std::vector<std::size_t>& order) {
  const Array rotated = product(product(transposed(basis), factor), basis);
  order.resize(basis.cols);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rotated(a, a) > rotated(b, b); });
  Array sorted(basis.rows, basis.cols);
  for (std::size_t i = 0; i < basis.rows; ++i)
    for (std::size_t j = 0; j < basis.cols; ++j) sorted(i, j) = basis(i, order[j]);
  return orthonormalized(product(factor, sorted));
}

// K + shift trace(K) I.
Array shifted(Array factor, double shift) {
  double trace = 0;
  for (std::size_t i = 0; i < factor.rows; ++i) trace += factor(i, i);
  for (std::size_t i = 0; i < factor.rows; ++i) factor(i, i) += shift * trace;
  return factor;
}

// The rule as its author publishes it, from a given state.
struct PublishedSoapMuon {
  Array weight, momentum, second, left, right, left_basis, right_basis;
  std::vector<NewtonSchulzStep> steps;
  double mu = 0.95, beta2 = 0.9, eps = 1e-8, factor_beta = 0.9, ns_eps = 1e-7;
  double shift = 0;  // published: 0

  void step(const Array& g, double lr, double weight_decay) {
    momentum = blend(mu, momentum, 1 - mu, g);
    const Array u = blend(1 - mu, g, mu, momentum);
    Array p = product(product(transposed(left_basis), u), right_basis);
    for (std::size_t i = 0; i < p.values.size(); ++i) {
      double& v = second.values[i];
      v = beta2 * v + (1 - beta2) * p.values[i] * p.values[i];
      p.values[i] /= std::sqrt(std::max(v, eps * eps));
    }
    const Array rotated = product(product(left_basis, p), transposed(right_basis));
    const Array d = blend(std::max(gram_norm(u), eps) / std::max(gram_norm(rotated), eps), rotated, 0, rotated);
    const double rows = double(g.rows), cols = double(g.cols), scale = std::sqrt(std::max(1.0, rows / cols));
    weight = blend(1 - lr * weight_decay, weight, -lr * scale, orthogonalised(d, steps, ns_eps));
    left = blend(factor_beta, left, 1 - factor_beta, product(g, transposed(g)));
    right = blend(factor_beta, right, 1 - factor_beta, product(transposed(g), g));
    refresh();
  }
  void refresh() {
    std::vector<std::size_t> rows, cols;
    left_basis = next_basis(shifted(left, shift), left_basis, rows);
    right_basis = next_basis(shifted(right, shift), right_basis, cols);
    const Array before = second;
    for (std::size_t i = 0; i < second.rows; ++i)
      for (std::size_t j = 0; j < second.cols; ++j) second(i, j) = before(rows[i], cols[j]);
  }
};

// A factor of the size of those of later gradients: of full rank, which those of the first gradients are not on the
// longer side, where rounding then decides on the bases.
Array given_factor(const Array& basis, double size) {
  std::vector<double> values(basis.cols);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = size * (2 - double(i) / double(values.size()));
  return rounded<float>(with_eigenvalues(basis, values));
}

template <class Space>
void set_field(MatrixRig<Space>& rig, const char* name, const Array& values) {
  const auto field = rig.optimizer->state().write(name);
  set_values(field.view(), values);
}

template <class Space>
class SoapMuon : public testing::Test {};
TYPED_TEST_SUITE(SoapMuon, StreamSpaces, SpaceNames);

constexpr std::pair<std::size_t, std::size_t> soap_muon_shapes[] = {{12, 8}, {8, 12}, {9, 9},
                                                                    {33, 7}, {7, 33}, {41, 29}};

// Ten updates, refreshed in each. An update sums m + n products per element four times and makes five steps of
// Newton-Schulz, each of which amplifies what came before by up to 3.4 where a singular value is small; factors, bases
// and moments carry errors from one update to the next.
template <class Space>
void follows_published_rule(std::size_t m, std::size_t n, double shift) {
  SCOPED_TRACE(testing::Message() << m << " x " << n << ", shift " << shift);
  MatrixRig<Space> rig("soap-muon", m, n, {{"basis_shift", shift}}, {}, 1);
  PublishedSoapMuon rule{rig.weight, Array(m, n), Array(m, n)};
  rule.left_basis = rounded<float>(random_basis(m, 3));
  rule.right_basis = rounded<float>(random_basis(n, 4));
  rule.left = given_factor(rule.left_basis, double(n));
  rule.right = given_factor(rule.right_basis, double(m));
  rule.steps = newton_schulz_steps("simple", 5);
  rule.shift = shift;
  set_field(rig, "basis_left", rule.left_basis);
  set_field(rig, "basis_right", rule.right_basis);
  set_field(rig, "factor_left", rule.left);
  set_field(rig, "factor_right", rule.right);
  rig.optimizer->state().counter("started") = 1;
  const double tolerance = 30 * double(m + n) * epsilon<float>;
  for (unsigned t = 0; t < 10; ++t) {
    const Array g = gradient_at(m, n, t), moved = rig.step(g, 0.0625, 0.125);
    rule.step(g, 0.0625, 0.125);
    SCOPED_TRACE(testing::Message() << "update " << t);
    expect_close(moved, rule.weight, tolerance, "weight");
  }
  expect_close(rig.field("second_moment"), rule.second, tolerance, "second moment");
}

TYPED_TEST(SoapMuon, FollowsThePublishedRule) {
  for (const auto& [m, n] : soap_muon_shapes)
    for (const double shift : {0.0, 0.125}) follows_published_rule<TypeParam>(m, n, shift);
}

// The first update is that of Muon, and leaves no second moment; then the factors are a tenth of the first gradient's,
// and the bases their eigenvectors.
TYPED_TEST(SoapMuon, BeginsAsMuon) {
  for (const auto& [m, n] : soap_muon_shapes) {
    MatrixRig<TypeParam> rig("soap-muon", m, n), muon("muon", m, n, {}, {{"scale", "original"}, {"ns_norm", "gram"}});
    const Array g = gradient_at(m, n, 5);
    expect_same(rig.step(g, 0.0625, 0.125), muon.step(g, 0.0625, 0.125), "first weight");
    expect_same(rig.field("second_moment"), Array(m, n), "second moment");
    const Array left = product(g, transposed(g)), right = product(transposed(g), g);
    expect_close(rig.field("factor_left"), blend(0.1, left, 0, left), 1e-5, "left factor");
    expect_close(rig.field("factor_right"), blend(0.1, right, 0, right), 1e-5, "right factor");
    for (const char* side : {"left", "right"}) {
      const Array q = rig.field(std::string("basis_") + side), k = rig.field(std::string("factor_") + side);
      const Array values = product(product(transposed(q), k), q);
      for (std::size_t i = 0; i < q.rows; ++i)
        for (std::size_t j = 0; j < q.rows; ++j)
          if (i != j) EXPECT_NEAR(values(i, j), 0, 1e-4 * values(0, 0)) << side;
    }
    EXPECT_NE(rig.step(gradient_at(m, n, 6)).values, muon.step(gradient_at(m, n, 6)).values);
  }
}

// Zeros before the first gradient only decay, and no basis is made of them.
TYPED_TEST(SoapMuon, WaitsForAGradient) {
  MatrixRig<TypeParam> waits("soap-muon", 8, 6), starts("soap-muon", 8, 6);
  for (int t = 0; t < 2; ++t) expect_same(waits.step(Array(8, 6)), waits.weight, "weight");
  EXPECT_EQ(waits.optimizer->state().counter("started"), 0);
  for (unsigned t = 0; t < 5; ++t) {
    const Array g = gradient_at(8, 6, t);
    expect_same(waits.step(g), starts.step(g), "weight");
  }
}

// A refresh of every second update keeps the bases in between.
TYPED_TEST(SoapMuon, RefreshesWhenItIsDue) {
  MatrixRig<TypeParam> rig("soap-muon", 12, 8, {}, {}, 2);
  std::vector<Array> bases;
  for (unsigned t = 0; t < 6; ++t) {
    rig.step(gradient_at(12, 8, t));
    bases.push_back(rig.field("basis_right"));
  }
  // The first update has no bases to use, and is not counted: the second one is number 1.
  for (std::size_t t = 1; t < bases.size(); ++t)
    EXPECT_EQ(bases[t].values == bases[t - 1].values, t % 2 == 1) << "update " << t + 1;
}

}  // namespace
}  // namespace sestina::reference
