// Norms of Hessians by random vectors, against Hessians that are small enough to be written down: of a quadratic, and
// of a small language model.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "core/hessian_norm.hpp"
#include "regression/unit/core/model_rig.hpp"

namespace sestina {
namespace {

using Square = std::vector<std::vector<double>>;

double one_norm(const Square& h) {
  double sum = 0;
  for (const auto& row : h)
    for (const double x : row) sum += std::abs(x);
  return sum;
}
double frobenius(const Square& h) {
  double sum = 0;
  for (const auto& row : h)
    for (const double x : row) sum += x * x;
  return std::sqrt(sum);
}
double total(const std::vector<double>& rows) { return std::accumulate(rows.begin(), rows.end(), 0.0); }

// I - 2 u u^T / u^T u.
std::vector<double> reflection(std::uint64_t seed, std::size_t n) {
  std::vector<double> u(n), q(n * n);
  normals(seed, 0, n, 1.0, u.data());
  double squares = 0;
  for (const double x : u) squares += x * x;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) q[i * n + j] = (i == j ? 1 : 0) - 2 * u[i] * u[j] / squares;
  return q;
}

// Column j is H e_j, in the coordinates of the rotated matrices.
Square exact(HessianProducts& products, Gemm<Host>& gemm, const std::vector<RotatedCoordinates>& rotated) {
  Square h;
  std::vector<double> e(products.size()), column;
  for (std::size_t j = 0; j < e.size(); ++j) {
    std::fill(e.begin(), e.end(), 0.0);
    e[j] = 1;
    rotate_coordinates(gemm, rotated, false, e);
    products.times(e, column);
    rotate_coordinates(gemm, rotated, true, column);
    h.push_back(column);
  }
  return h;
}

// f = w^T A w / 2 with A = D + 0.3 u u^T: differences of its gradient have no truncation error.
struct Quadratic {
  static constexpr std::size_t n = 24;
  std::vector<double> u = std::vector<double>(n);
  Quadratic() { normals(3, 0, n, 1.0, u.data()); }
  double a(std::size_t i, std::size_t j) const {
    return (i == j ? 1.0 + static_cast<double>(i) : 0.0) + 0.3 * u[i] * u[j];
  }
  HessianProducts products() const {
    const auto gradient = [this](const std::vector<double>& w, std::vector<double>& g) {
      g.assign(n, 0.0);
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j) g[i] += a(i, j) * w[j];
    };
    return {gradient, std::vector<double>(n, 0.5)};
  }
};

// Each row within five deviations of its own, pi / (2 sqrt(4000)) = 2.5 %: without the factor that takes the bias away
// nothing would show here, so few vectors are tried many times below.
TEST(HessianNorm, RowsOfAQuadratic) {
  const Quadratic f;
  HessianProducts products = f.products();
  Gemm<Host> gemm{Host(1)};
  const std::vector<double> rows = hessian_row_norms(products, gemm, {}, 4000, 1);
  for (std::size_t i = 0; i < f.n; ++i) {
    double norm = 0;
    for (std::size_t j = 0; j < f.n; ++j) norm += std::abs(f.a(i, j));
    EXPECT_NEAR(rows[i], norm, 0.125 * norm) << i;
  }
  double mean = 0, norm = 0;
  constexpr int tries = 2000;
  for (int seed = 0; seed < tries; ++seed) mean += hessian_row_norms(products, gemm, {}, 8, 100 + seed)[0] / tries;
  for (std::size_t j = 0; j < f.n; ++j) norm += std::abs(f.a(0, j));
  // Deviation of one try about 60 %, of their mean 1.4 %; the bias without the factor were 17 %.
  EXPECT_NEAR(mean, norm, 0.06 * norm);
}

// Three ranks take five vectors in turn. What each of them brings is noted first, and then given to all.
TEST(HessianNorm, RanksThatShareVectorsHaveTheBitsOfOne) {
  constexpr int size = 3, vectors = 5;
  const Quadratic f;
  Gemm<Host> gemm{Host(1)};
  HessianProducts one = f.products();
  const std::vector<double> rows = hessian_row_norms(one, gemm, {}, vectors, 1);
  const double norm = hessian_frobenius(one, vectors, 1);
  std::array<std::vector<std::vector<double>>, size> brought;
  for (const bool given : {false, true})
    for (int rank = 0; rank < size; ++rank) {
      std::size_t call = 0;
      const auto gather = [&](const double* mine, std::size_t n, double* all) {
        if (!given) brought[static_cast<std::size_t>(rank)].emplace_back(mine, mine + n);
        for (const auto& calls : brought) all = given ? std::copy_n(calls[call].data(), n, all) : all;
        ++call;
      };
      HessianProducts products = f.products();
      const VectorRanks ranks{rank, size, gather};
      const std::vector<double> shared = hessian_row_norms(products, gemm, {}, vectors, 1, ranks);
      const double shared_norm = hessian_frobenius(products, vectors, 1, ranks);
      if (!given) continue;
      EXPECT_EQ(shared, rows) << rank;
      EXPECT_EQ(shared_norm, norm) << rank;
      EXPECT_EQ(call, 4u);  // two rounds for the rows, two for the norm of all
    }
}

// In the eigenbasis of a rotated diagonal the (1,1)-norm is the sum of the eigenvalues, and far more next to it.
TEST(HessianNorm, AnEigenbasisHasTheLeast) {
  constexpr std::size_t m = 6, n = 5;
  const RotatedCoordinates w{0, m, n, reflection(1, m), reflection(2, n)};
  Gemm<Host> gemm{Host(1)};
  const auto gradient = [&](const std::vector<double>& at, std::vector<double>& g) {  // sum of (i + 1) X_i^2 / 2
    g = at;
    rotate_coordinates(gemm, {w}, true, g);
    for (std::size_t i = 0; i < g.size(); ++i) g[i] *= static_cast<double>(i + 1);
    rotate_coordinates(gemm, {w}, false, g);
  };
  HessianProducts products(gradient, std::vector<double>(m * n, 1.0));
  const Square inside = exact(products, gemm, {w}), outside = exact(products, gemm, {});
  constexpr double eigenvalues = m * n * (m * n + 1) / 2.0;
  EXPECT_NEAR(one_norm(inside), eigenvalues, 1e-9 * eigenvalues);
  EXPECT_GT(one_norm(outside), 1.5 * eigenvalues);
  EXPECT_NEAR(total(hessian_row_norms(products, gemm, {w}, 400, 1)), eigenvalues, 0.1 * eigenvalues);
  EXPECT_NEAR(total(hessian_row_norms(products, gemm, {}, 400, 1)), one_norm(outside), 0.15 * one_norm(outside));
}

// A block of a matrix turns by itself, as the same numbers turn where they are a matrix.
TEST(HessianNorm, BlocksTurnWhereTheyLie) {
  constexpr std::size_t m = 6, n = 5, rows = 3, cols = 2, at = 2 * n + 1;
  Gemm<Host> gemm{Host(1)};
  std::vector<double> whole(m * n), block(rows * cols);
  normals(4, 0, m * n, 1.0, whole.data());
  for (std::size_t i = 0; i < rows; ++i) std::copy_n(&whole[at + i * n], cols, &block[i * cols]);
  std::vector<double> want = whole;
  for (const bool back : {false, true}) {
    rotate_coordinates(gemm, {{at, rows, cols, reflection(1, rows), reflection(2, cols), n}}, back, whole);
    rotate_coordinates(gemm, {{0, rows, cols, reflection(1, rows), reflection(2, cols)}}, back, block);
    for (std::size_t i = 0; i < rows; ++i) std::copy_n(&block[i * cols], cols, &want[at + i * n]);
    EXPECT_EQ(whole, want);
  }
}

struct SmallModel {
  ModelConfig config = [] {
    ModelConfig c = small_model(Family::llama);
    c.hidden_size = 8;
    c.intermediate_size = 6;
    c.num_hidden_layers = 1;
    c.num_attention_heads = c.num_key_value_heads = 2;
    c.head_dim = 4;
    c.vocab_size = 11;
    return c;
  }();
  std::vector<FixedBatch> batches;
  std::unique_ptr<LossGradient> loss;
  std::vector<double> at;

  SmallModel() {
    for (int b = 0; b < 2; ++b) {
      FixedBatch batch;
      for (std::uint64_t i = 0; i < 3 * 7; ++i)
        batch.tokens.push_back(
            static_cast<std::int32_t>(11 * uniform(stream_of(static_cast<std::uint64_t>(b), "tokens"), i)));
      batches.push_back(batch);
    }
    std::fill_n(batches[1].tokens.begin() + 14, 7, -1);  // a row that does not count
    loss = std::make_unique<LossGradient>(Host(1), config, 3, 6, batches);
    at.resize(loss->size());
    normals(9, 0, at.size(), 0.3, at.data());
  }
  HessianProducts products() {
    return {[this](const std::vector<double>& w, std::vector<double>& g) { (*loss)(w, g); }, at};
  }
  std::size_t begin(const std::string& name) const {
    std::size_t begin = 0;
    for (const TensorSpec& spec : loss->specs()) {
      if (spec.name == name) return begin;
      begin += static_cast<std::size_t>(spec.elements());
    }
    fail(ExitCode::internal, "no tensor {}", name);
  }
};

// The gradient that is differenced is that of the mean over tokens that count.
TEST(HessianNorm, GradientOfTheMeanLoss) {
  SmallModel model;
  std::vector<double> gradient, other, v(model.at.size());
  (*model.loss)(model.at, gradient);
  normals(4, 0, v.size(), 1.0, v.data());
  double analytic = 0;
  for (std::size_t i = 0; i < v.size(); ++i) analytic += v[i] * gradient[i];
  const auto loss = [&](double h) {
    std::vector<double> moved = model.at;
    for (std::size_t i = 0; i < v.size(); ++i) moved[i] += h * v[i];
    return (*model.loss)(moved, other);
  };
  constexpr double h = 1e-4;
  EXPECT_NEAR((8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h), analytic,
              1e-7 * std::abs(analytic));
  EXPECT_NEAR(loss(0), std::log(11.0), 1.0);
}

// The whole Hessian of a model of some hundreds of weights, column by column: symmetric, as differences are exact to
// their stated error; and the estimates of its norms, in both coordinates. 300 vectors: rows within 9 %, which their
// sum, of rows that err together, cannot exceed by much; 15 % is asked.
TEST(HessianNorm, OfASmallModelAgainstTheExactOne) {
  SmallModel model;
  HessianProducts products = model.products();
  Gemm<Host> gemm{Host(1)};
  const std::size_t n = products.size();
  const Square h = exact(products, gemm, {});
  double asymmetry = 0;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) asymmetry += std::abs(h[i][j] - h[j][i]);
  EXPECT_LT(asymmetry, 1e-3 * one_norm(h));
  std::vector<double> v(n), product;
  cauchy_vector(5, 0, v);
  EXPECT_LT(products.error(v), 1e-3);
  products.times(v, product);
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < n; ++j) sum += h[j][i] * v[j];
    difference += std::abs(sum - product[i]);
    size += std::abs(sum);
  }
  EXPECT_LT(difference, 1e-3 * size);
  const std::string layer = "model.layers.0.";
  const std::vector<RotatedCoordinates> rotated = {
      {model.begin(layer + "mlp.down_proj.weight"), 8, 6, reflection(1, 8), reflection(2, 6)},
      {model.begin(layer + "self_attn.o_proj.weight"), 8, 8, reflection(3, 8), {}}};
  const Square turned = exact(products, gemm, rotated);
  EXPECT_NEAR(frobenius(turned), frobenius(h), 1e-3 * frobenius(h));
  EXPECT_GT(std::abs(one_norm(turned) - one_norm(h)), 0.02 * one_norm(h));
  EXPECT_NEAR(total(hessian_row_norms(products, gemm, {}, 300, 1)), one_norm(h), 0.15 * one_norm(h));
  EXPECT_NEAR(total(hessian_row_norms(products, gemm, rotated, 300, 2)), one_norm(turned), 0.15 * one_norm(turned));
  EXPECT_NEAR(hessian_frobenius(products, 300, 1), frobenius(h), 0.1 * frobenius(h));
}

}  // namespace
}  // namespace sestina
