#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/blas/host_values.hpp"
#include "kernels/optimizer/adamw.hpp"

namespace sestina {
namespace {

// The state of one parameter vector; `view` of each part starts one element in, so that nothing is aligned by chance.
template <class T>
struct Problem {
  using S = Acc<T>;
  std::size_t n;
  std::vector<S> gradient, master, m, v;
  std::vector<T> weight;

  explicit Problem(std::size_t n) : n(n), gradient(n + 2), master(n + 2), m(n + 2), v(n + 2), weight(n + 2) {
    for (std::size_t i = 0; i < n + 2; ++i) {
      gradient[i] = S(std::sin(0.7 * double(i)) * std::exp2(double(i % 23) - 16));
      master[i] = S(std::cos(1.3 * double(i)));
      m[i] = S(0.01 * std::sin(2.1 * double(i)));
      v[i] = S(0.001 * double(i % 7));
      weight[i] = T(7.0f);
    }
  }
  template <class U>
  auto view(auto& x) {
    return Vector<U, Host>(x.data() + 1, n);
  }

  ElementRun<T> elements(bool with_weight) {
    return element_run<Host, T>(view<const S>(gradient), view<S>(master),
                                with_weight ? view<T>(weight) : Vector<T, Host>(), {view<S>(m), view<S>(v)});
  }
  void run(const AdamWStep& step, bool with_weight) { adamw<Host, T>(Host(), step, elements(with_weight)); }
};

// The published update, in double.
void plain(const AdamWStep& s, double gradient, double& w, double& m, double& v) {
  const double g = gradient * s.gradient_scale;
  w *= 1 - s.lr * s.weight_decay;
  m = s.beta1 * m + (1 - s.beta1) * g;
  v = s.beta2 * v + (1 - s.beta2) * g * g;
  w -= s.lr * (m / s.bias_correction1) / (std::sqrt(v / s.bias_correction2) + s.eps);
}

template <class T>
class AdamWTest : public testing::Test {};
using AllTypes = testing::Types<float, double, bf16>;
TYPED_TEST_SUITE(AdamWTest, AllTypes);

TYPED_TEST(AdamWTest, MatchesPlainUpdate) {
  // A dozen roundings, relative to the value or to 1.
  const double eps = 16 * std::numeric_limits<Acc<TypeParam>>::epsilon();
  const AdamWStep step{0.02, 0.9, 0.95, 1e-8, 0.1, 1 - std::pow(0.9, 3), 1 - std::pow(0.95, 3), 0.5};
  for (const bool with_weight : {true, false})
    for (const std::size_t n : {1, 15, 8192, 20001}) {
      Problem<TypeParam> got(n);
      const Problem<TypeParam> start = got;
      got.run(step, with_weight);
      for (std::size_t i = 0; i < n + 2; ++i) {
        double w = start.master[i], m = start.m[i], v = start.v[i];
        const bool inside = i > 0 && i <= n;
        if (inside) plain(step, start.gradient[i], w, m, v);
        ASSERT_NEAR(got.master[i], w, inside ? eps * (1 + std::abs(w)) : 0) << i;
        ASSERT_NEAR(got.m[i], m, inside ? eps * (1 + std::abs(m)) : 0) << i;
        ASSERT_NEAR(got.v[i], v, inside ? eps * (1 + std::abs(v)) : 0) << i;
        const float rounded = inside && with_weight ? float(TypeParam(got.master[i])) : 7.0f;
        ASSERT_EQ(float(got.weight[i]), rounded) << i;
      }
    }
}

// One launch for several runs, with and without weights: the same bits as one for each.
TYPED_TEST(AdamWTest, SeveralRunsAreUpdatedAsEach) {
  const AdamWStep step{0.02, 0.9, 0.95, 1e-8, 0.1, 1 - std::pow(0.9, 3), 1 - std::pow(0.95, 3), 0.5};
  std::vector<Problem<TypeParam>> each, together;
  for (const std::size_t n : {3, 8192, 20001, 8191}) each.emplace_back(n);
  together = each;
  std::vector<ElementRun<TypeParam>> runs;
  std::size_t pieces = 0;
  for (Problem<TypeParam>& one : together) {
    runs.push_back(one.elements(one.n != 20001));
    runs.back().first = pieces;
    pieces += runs.back().pieces();
  }
  adamw<Host, TypeParam>(Host(), step, ElementRuns<Host, TypeParam>{table_in_space<Host>("runs", runs), pieces});
  for (std::size_t i = 0; i < each.size(); ++i) {
    each[i].run(step, each[i].n != 20001);
    EXPECT_EQ(together[i].master, each[i].master) << i;
    EXPECT_EQ(together[i].m, each[i].m) << i;
    EXPECT_EQ(together[i].v, each[i].v) << i;
    for (std::size_t k = 0; k < each[i].weight.size(); ++k)
      ASSERT_EQ(float(together[i].weight[k]), float(each[i].weight[k])) << i << ", " << k;
  }
}

TYPED_TEST(AdamWTest, EmptyAndMisfit) {
  Problem<TypeParam> nothing(0);
  EXPECT_NO_THROW(nothing.run(AdamWStep{}, true));
  Problem<TypeParam> some(4);
  using S = Acc<TypeParam>;
  const auto g = some.template view<const S>(some.gradient);
  const auto w = some.template view<S>(some.master), m = some.template view<S>(some.m);
  const Vector<S, Host> shorter(some.v.data(), 3);
  const Vector<TypeParam, Host> none, short_weight(some.weight.data(), 3);
  EXPECT_THROW((element_run<Host, TypeParam>(g, w, none, {m, shorter})), Error);
  EXPECT_THROW((element_run<Host, TypeParam>(g, shorter, none, {m, m})), Error);
  EXPECT_THROW((element_run<Host, TypeParam>(g, w, short_weight, {m, m})), Error);
}

TYPED_TEST(AdamWTest, NanReachesTheWeight) {
  Problem<TypeParam> x(5);
  using S = Acc<TypeParam>;
  x.gradient[3] = std::numeric_limits<S>::quiet_NaN();
  x.run(AdamWStep{0.1}, true);
  EXPECT_TRUE(std::isnan(x.master[3]));
  EXPECT_TRUE(std::isnan(float(x.weight[3])));
  EXPECT_FALSE(std::isnan(x.master[2]));
}

// Wherever it lies, and in any piece that a thread takes.
TEST(AdamW, AWeightThatIsNotFiniteRaisesTheFlag) {
  for (const std::size_t n : {1, 9000, 40000})
    for (const std::size_t at : {std::size_t{1}, n / 2 + 1, n})
      for (const float value : {std::numeric_limits<float>::infinity(), std::nanf(""), 0.0f}) {
        double flag = 0;
        AdamWStep step;
        step.lr = 1e-3;
        step.nonfinite = &flag;
        Problem<float> problem(n);
        problem.run(step, false);
        ASSERT_EQ(flag, 0);
        problem.master[at] = value;
        problem.run(step, false);
        EXPECT_EQ(flag, value == 0 ? 0 : 1) << n << ' ' << at;
        Problem<bf16> rounded(n);
        flag = 0;
        rounded.master[at] = value;
        rounded.run(step, true);
        EXPECT_EQ(flag, value == 0 ? 0 : 1) << n << ' ' << at;
      }
}

}  // namespace
}  // namespace sestina
