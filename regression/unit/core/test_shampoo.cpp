// What Shampoo's rule says, where it can be said without another program: the golden files have the numbers.
#include <gtest/gtest.h>

#include <functional>

#include "../linear_algebra.hpp"
#include "../spaces.hpp"
#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/methods/shampoo/shampoo.hpp"

namespace sestina {
namespace {

using namespace reference;

MatrixOptions shampoo_options() {
  MatrixOptions options = default_options(*find_matrix_kind("shampoo"));
  options.refresh_every = 1;
  return options;
}

template <class Space>
struct ShampooRig {
  ShampooRig(const MatrixOptions& options, const Array& w)
      : optimizer(make_matrix_optimizer<Space>(Space(), options, {"/optimizer/w", w.rows, w.cols, 0})),
        stream{Space(), Gemm<Space>(Space(), true), Workspace<Space>(bytes_taken<Space>([&](auto& counter) {
                 declare_update<Space>(counter, options, w.rows, w.cols);
               }))},
        weight(w) {}
  void step(std::int64_t t, const Array& g, double lr = 1, double decay = 0) {
    const Field<float, Space> gradient(g);
    optimizer->step(stream, {t, lr, decay, 1}, {"w", gradient.read(), weight.matrix(), {}});
    stream.exec.fence();
  }
  // What the last step subtracted from a weight of zero.
  Array moved() const {
    Array direction = weight.get();
    for (double& value : direction.values) value = -value;
    return direction;
  }

  std::unique_ptr<MatrixOptimizer<Space>> optimizer;
  Stream<Space> stream;
  Field<float, Space> weight;
};

double norm(const Array& a) { return std::sqrt(inner(a, a)); }

Array block(const Array& a, std::size_t row, std::size_t col, std::size_t rows, std::size_t cols) {
  Array part(rows, cols);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j) part(i, j) = a(row + i, col + j);
  return part;
}

// U diag(values) V^T.
Array with_singular_values(std::size_t m, std::size_t n, const std::vector<double>& values) {
  const Array u = random_basis(m, 21), v = random_basis(n, 22);
  Array s(m, n);
  for (std::size_t i = 0; i < values.size(); ++i) s(i, i) = values[i];
  return product(product(u, s), transposed(v));
}

template <class Space>
class ShampooRule : public testing::Test {};
TYPED_TEST_SUITE(ShampooRule, StreamSpaces, SpaceNames);

// At t = 1 the corrected factors are G G^T and G^T G: (G G^T)^(-1/4) G (G^T G)^(-1/4) = U V^T.
TYPED_TEST(ShampooRule, FirstStepWithoutGraftIsThePolarFactor) {
  for (const char* root : {"qr", "eigh", "newton"}) {
    for (std::size_t d : {1, 2, 9, 20}) {
      std::vector<double> values(d), ones(d, 1.0);
      for (std::size_t i = 0; i < d; ++i) values[i] = 2.0 - double(i) / double(d);
      MatrixOptions options = shampoo_options();
      options.set("root", root);
      options.set("graft", "none");
      ShampooRig<TypeParam> rig(options, Array(d, d));
      rig.step(1, with_singular_values(d, d, values));
      EXPECT_LE(largest_difference(rig.moved(), with_singular_values(d, d, ones)), 50 * double(d) * epsilon<float>)
          << root << " " << d;
    }
  }
}

// A vector has one factor, g g^T, to the power -1/2: the direction is g / |g|.
TYPED_TEST(ShampooRule, MergedDimensionsMakeAVector) {
  for (const char* root : {"qr", "eigh", "newton"}) {
    MatrixOptions options = shampoo_options();
    options.set("root", root);
    options.set("graft", "none");
    options.set("merge_dims", 1);
    options.set("eps", 1e-6);  // rounding of the singular factor is enlarged by eps^(-1/2)
    const Array g = random_array(3, 4, 1);
    ShampooRig<TypeParam> rig(options, Array(3, 4));
    rig.step(1, g);
    Array want = g;
    for (double& value : want.values) value /= norm(g);
    EXPECT_LE(largest_difference(rig.moved(), want), 1e-3) << root;
    EXPECT_FALSE(rig.optimizer->state().has("factor_right"));
  }
}

TYPED_TEST(ShampooRule, GraftGivesTheSizeAndBeforeTheStartTheDirection) {
  const Array g = random_array(6, 5, 3);
  MatrixOptions options = shampoo_options();
  options.set("graft", "sgd");
  options.set("beta1", 0);
  options.set("start_step", 3);
  ShampooRig<TypeParam> rig(options, Array(6, 5));
  Array before = rig.weight.get();
  for (std::int64_t t = 1; t <= 4; ++t) {
    rig.step(t, g, 0.5);
    const Array after = rig.weight.get();
    Array moved(6, 5);
    for (std::size_t i = 0; i < moved.values.size(); ++i) moved.values[i] = before.values[i] - after.values[i];
    EXPECT_NEAR(norm(moved), 0.5 * norm(g), 1e-5 * norm(g));
    const double cosine = inner(moved, g) / (norm(moved) * norm(g));
    if (t < 3)
      EXPECT_NEAR(cosine, 1, 1e-5);
    else
      EXPECT_LT(cosine, 0.99);
    before = after;
  }
}

// Before the start, the Adam graft is Adam.
TYPED_TEST(ShampooRule, AdamGraftBeforeTheStartIsAdam) {
  constexpr std::size_t n = 7;
  constexpr double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, lr = 0.1, decay = 0.2;
  MatrixOptions options = shampoo_options();
  options.set("start_step", 100);
  Array w = random_array(n, n, 1), m(n, n), v(n, n);
  ShampooRig<TypeParam> rig(options, w);
  for (std::int64_t t = 1; t <= 5; ++t) {
    const Array g = rounded<float>(random_array(n, n, 10 + unsigned(t)));
    rig.step(t, g, lr, decay);
    for (std::size_t i = 0; i < w.values.size(); ++i) {
      m.values[i] += (1 - beta1) * (g.values[i] - m.values[i]);
      v.values[i] += (1 - beta2) * (g.values[i] * g.values[i] - v.values[i]);
      const double bias1 = 1 - std::pow(beta1, t), bias2 = 1 - std::pow(beta2, t);
      w.values[i] = (1 - lr * decay) * w.values[i] - lr * m.values[i] / bias1 / (std::sqrt(v.values[i] / bias2) + eps);
    }
  }
  expect_close(rig.weight.get(), w, 20 * epsilon<float>, "weight");
}

TYPED_TEST(ShampooRule, BlocksAreSeparateMatrices) {
  MatrixOptions options = shampoo_options();
  options.refresh_every = 2;
  options.set("max_dim", 5);
  const Array w = random_array(12, 8, 1);
  ShampooRig<TypeParam> whole(options, w);
  const ShampooLayout layout = shampoo_layout(options.as<ShampooOptions>(), 12, 8);
  ASSERT_EQ(layout.blocks.size(), 6u);
  std::vector<std::unique_ptr<ShampooRig<TypeParam>>> parts;
  for (const ShampooBlock& b : layout.blocks)
    parts.push_back(std::make_unique<ShampooRig<TypeParam>>(options, block(w, b.row, b.col, b.rows, b.cols)));
  for (std::int64_t t = 1; t <= 7; ++t) {
    const Array g = random_array(12, 8, 5 + unsigned(t));
    whole.step(t, g, 0.1, 0.1);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const ShampooBlock& b = layout.blocks[i];
      parts[i]->step(t, block(g, b.row, b.col, b.rows, b.cols), 0.1, 0.1);
      const Array got = block(whole.weight.get(), b.row, b.col, b.rows, b.cols);
      EXPECT_LE(largest_difference(got, parts[i]->weight.get()), 1e-5);  // the graft's factor is rounded elsewhere
    }
  }
  EXPECT_TRUE(whole.optimizer->state().has("block_2_1.factor_right"));
}

TYPED_TEST(ShampooRule, PackedFactorsGiveTheSameBits) {
  for (const char* root : {"qr", "eigh", "newton"}) {
    MatrixOptions options = shampoo_options(), packed = options;
    options.refresh_every = packed.refresh_every = 2;
    options.set("root", root);
    packed.set("root", root);
    packed.set("packed", 1);
    const Array w = random_array(9, 14, 1);
    ShampooRig<TypeParam> dense(options, w), small(packed, w);
    for (std::int64_t t = 1; t <= 7; ++t) {
      const Array g = random_array(9, 14, 5 + unsigned(t));
      dense.step(t, g, 0.1);
      small.step(t, g, 0.1);
      expect_same(small.weight.get(), dense.weight.get(), root);
    }
    EXPECT_EQ(small.optimizer->state().read("factor_left_packed").extent(0), 45u);
  }
}

// With many iterations the warm-started root is the root.
TYPED_TEST(ShampooRule, RootsAgree) {
  MatrixOptions options = shampoo_options();
  options.refresh_every = 2;
  options.set("eps", 1e-3);
  options.set("qr_tolerance", 1e-4);
  options.set("qr_iterations", 50);
  const Array w = random_array(10, 7, 1);
  std::vector<Array> results;
  for (const char* root : {"eigh", "qr", "newton"}) {
    options.set("root", root);
    ShampooRig<TypeParam> rig(options, w);
    for (std::int64_t t = 1; t <= 9; ++t) rig.step(t, random_array(10, 7, 5 + unsigned(t)), 0.1);
    results.push_back(rig.weight.get());
    EXPECT_EQ((&rig.optimizer->state().counter("refreshes"))[0], 4);
    EXPECT_EQ((&rig.optimizer->state().counter("refreshes"))[1], 4);
  }
  EXPECT_LE(largest_difference(results[0], results[1]), 2e-3);
  EXPECT_LE(largest_difference(results[0], results[2]), 1e-4);
}

TEST(Shampoo, NewtonNeedsAnIntegerRoot) {
  MatrixOptions options = shampoo_options();
  options.set("root", "newton");
  options.set("exponent", 0.3);
  try {
    make_matrix_optimizer<Serial>(Serial(), options, {"/optimizer/w", 4, 4, 0});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_deck);
  }
}

TYPED_TEST(ShampooRule, KeepsItsRootsWhenAFactorIsNotFinite) {
  MatrixOptions options = shampoo_options();
  options.set("graft", "none");
  ShampooRig<TypeParam> rig(options, Array(4, 3));
  rig.step(1, random_array(4, 3, 1));
  const auto root = rig.optimizer->state().read("inverse_root_left");
  const Array before = values_of(root);
  Array bad = random_array(4, 3, 2);
  bad(1, 1) = std::numeric_limits<double>::infinity();
  rig.step(2, bad);
  expect_same(values_of(root), before, "root");
  EXPECT_EQ((&rig.optimizer->state().counter("failures"))[0], 1);
  EXPECT_EQ((&rig.optimizer->state().counter("failures"))[1], 1);
  EXPECT_EQ(rig.stream.refresh.failures, 2);
}

}  // namespace
}  // namespace sestina
