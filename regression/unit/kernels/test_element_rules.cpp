// Elementwise rules next to AdamW: each against its published form in double, and cautious decay in all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/blas/host_values.hpp"
#include "kernels/optimizer/adamw.hpp"
#include "kernels/optimizer/element_rules.hpp"

namespace sestina {
namespace {

constexpr int updates = 12, warmup = 8;
constexpr double lr = 0.02, decay = 0.1, scale = 0.5;

// Gradients of a few signs and sizes, none of them near 0, where the sign of Lion would be chance.
double gradient_at(std::size_t i, int t) {
  return std::exp2(static_cast<double>(i % 11) - 8) * (i % 3 == 0 ? -1 : 1) * (1 + 0.3 * std::sin(0.9 * t + 0.1 * i));
}
double weight_at(std::size_t i) { return std::cos(1.3 * static_cast<double>(i)); }
bool decays(bool cautious, double u, double w) { return !cautious || u * w >= 0; }

// One element in double: its weight, and three numbers of state that start at zero.
struct Element {
  double w, a = 0, b = 0, c = 0;
};

// The published rules, for update t with gradient g.
void plain_lion(Element& x, double g, int, bool cautious) {
  const double beta1 = 0.95, beta2 = 0.98, mixed = beta1 * x.a + (1 - beta1) * g;
  const double u = mixed > 0 ? 1 : mixed < 0 ? -1 : 0;
  x.w -= lr * (u + (decays(cautious, u, x.w) ? decay * x.w : 0));
  x.a = beta2 * x.a + (1 - beta2) * g;
}

void plain_ademamix(Element& x, double g, int t, bool cautious) {
  const double beta1 = 0.9, beta2 = 0.999, last = 0.9999, eps = 1e-8, part = std::min(1.0, double(t) / warmup);
  const double alpha = 8 * part;
  // The paper's scheduler: exp(log(beta1) log(last) / ((1 - part) log(last) + part log(beta1))).
  const double beta3 = std::min(
      last, std::exp(std::log(beta1) * std::log(last) / ((1 - part) * std::log(last) + part * std::log(beta1))));
  x.a = beta1 * x.a + (1 - beta1) * g;
  x.b = beta3 * x.b + (1 - beta3) * g;
  x.c = beta2 * x.c + (1 - beta2) * g * g;
  const double u = (x.a / (1 - std::pow(beta1, t)) + alpha * x.b) / (std::sqrt(x.c / (1 - std::pow(beta2, t))) + eps);
  x.w -= lr * (u + (decays(cautious, u, x.w) ? decay * x.w : 0));
}

void plain_adamw(Element& x, double g, int t, bool cautious) {
  const double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  x.a = beta1 * x.a + (1 - beta1) * g;
  x.b = beta2 * x.b + (1 - beta2) * g * g;
  const double u = x.a / (1 - std::pow(beta1, t)) / (std::sqrt(x.b / (1 - std::pow(beta2, t))) + eps);
  x.w -= lr * (u + (decays(cautious, u, x.w) ? decay * x.w : 0));
}

// State: the iterate z in a, the average x in b, which both start at the weights, and the second moment in c.
void plain_schedule_free(Element& e, double g, int t, bool cautious) {
  const double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  if (t == 1) e.a = e.b = e.w;
  double sum = 0, largest = 0;
  for (int s = 1; s <= t; ++s) {
    largest = std::max(largest, std::min(1.0, double(s) / warmup));
    sum += largest * largest;
  }
  e.c = beta2 * e.c + (1 - beta2) * g * g;
  const double u = g / (std::sqrt(e.c / (1 - std::pow(beta2, t))) + eps);
  const double rate = lr * std::min(1.0, double(t) / warmup);
  e.a -= rate * (u + (decays(cautious, u, e.w) ? decay * e.w : 0));
  const double share = largest * largest / sum;
  e.b = (1 - share) * e.b + share * e.a;
  e.w = (1 - beta1) * e.a + beta1 * e.b;
}

// Vectors of a run; `view` of each begins one element in, so that nothing is aligned by chance.
template <class T>
struct Vectors {
  using S = Acc<T>;
  std::size_t n;
  std::vector<S> gradient, master, a, b, c;
  std::vector<T> weight;
  explicit Vectors(std::size_t n) : n(n), gradient(n + 2), master(n + 2), a(n + 2), b(n + 2), c(n + 2), weight(n + 2) {
    for (std::size_t i = 0; i < n + 2; ++i) master[i] = S(weight_at(i));
  }
  template <class U>
  auto view(auto& x) {
    return Vector<U, Host>(x.data() + 1, n);
  }
  // The first `fields` of a, b and c are the state.
  ElementRun<T> run(bool with_weight, std::size_t fields) {
    ElementRun<T> run = element_run<Host, T>(view<const S>(gradient), view<S>(master),
                                             with_weight ? view<T>(weight) : Vector<T, Host>(), {});
    S* const all[] = {a.data() + 1, b.data() + 1, c.data() + 1};
    std::copy(all, all + fields, run.state);
    return run;
  }
};

template <class Step>
Step common(bool cautious) {
  Step step;
  step.lr = lr;
  step.weight_decay = decay;
  step.gradient_scale = scale;
  step.cautious = cautious;
  return step;
}

// Each of these makes update t of `runs`, which is one run or a table.
struct LionOf {
  static constexpr std::size_t fields = 1;
  template <class T, class Runs>
  static void step(int, bool cautious, const Runs& runs) {
    lion<Host, T>(Host(), common<LionStep>(cautious), runs);
  }
};

struct AdEMAMixOf {
  static constexpr std::size_t fields = 3;
  template <class T, class Runs>
  static void step(int t, bool cautious, const Runs& runs) {
    auto step = common<AdEMAMixStep>(cautious);
    step.bias_correction1 = 1 - std::pow(step.beta1, t);
    step.bias_correction2 = 1 - std::pow(step.beta2, t);
    step.alpha = warm_alpha(8, t, warmup);
    step.beta3 = warm_beta3(0.9, 0.9999, t, warmup);
    ademamix<Host, T>(Host(), step, runs);
  }
};

struct AdamWOf {
  static constexpr std::size_t fields = 2;
  template <class T, class Runs>
  static void step(int t, bool cautious, const Runs& runs) {
    auto step = common<AdamWStep>(cautious);
    step.bias_correction1 = 1 - std::pow(step.beta1, t);
    step.bias_correction2 = 1 - std::pow(step.beta2, t);
    adamw<Host, T>(Host(), step, runs);
  }
};

struct ScheduleFreeOf {
  static constexpr std::size_t fields = 2;
  template <class T, class Runs>
  static void step(int t, bool cautious, const Runs& runs) {
    auto step = common<ScheduleFreeStep>(cautious);
    step.lr = lr * std::min(1.0, double(t) / warmup);
    step.bias_correction2 = 1 - std::pow(step.beta2, t);
    step.share = average_share(t, warmup);
    schedule_free<Host, T>(Host(), step, runs);
  }
};

template <class Rule, class T>
void step_one(Vectors<T>& v, int t, bool cautious, bool with_weight) {
  if (t == 1 && std::is_same_v<Rule, ScheduleFreeOf>) v.a = v.master;
  Rule::template step<T>(t, cautious, v.run(with_weight, Rule::fields));
}

// Compares weights after all updates; state(element) is what v.a must be then. `loss` is the number of roundings of an
// update that reach a weight, relative to its size or to 1.
template <class Rule, class T, class Plain, class State>
void expect_published(const Plain& plain, const State& state, double loss) {
  using S = Acc<T>;
  const double allowed = updates * loss * std::numeric_limits<S>::epsilon();
  for (const bool cautious : {false, true})
    for (const bool with_weight : {true, false})
      for (const std::size_t n : {1, 15, 8200}) {
        Vectors<T> got(n);
        std::vector<Element> elements;
        for (std::size_t i = 0; i < n + 2; ++i) elements.push_back({static_cast<double>(got.master[i])});
        for (int t = 1; t <= updates; ++t) {
          for (std::size_t i = 0; i < n + 2; ++i) {
            got.gradient[i] = S(gradient_at(i, t));
            if (i > 0 && i <= n) plain(elements[i], scale * static_cast<double>(got.gradient[i]), t, cautious);
          }
          step_one<Rule>(got, t, cautious, with_weight);
        }
        for (std::size_t i = 0; i < n + 2; ++i) {
          const bool inside = i > 0 && i <= n;
          ASSERT_NEAR(got.master[i], elements[i].w, inside ? allowed : 0) << i << ", cautious " << cautious;
          if (inside) ASSERT_NEAR(got.a[i], state(elements[i]), allowed) << i;
          const float rounded = inside && with_weight ? float(T(got.master[i])) : 0.0f;
          ASSERT_EQ(float(got.weight[i]), rounded) << i;
        }
      }
}

template <class T>
class ElementRules : public testing::Test {};
using AllTypes = testing::Types<float, double, bf16>;
TYPED_TEST_SUITE(ElementRules, AllTypes);

// A dozen roundings in an update. The iterate of schedule-free comes back from weight and average, which magnifies what
// these lost by 1 / (1 - beta1).
TYPED_TEST(ElementRules, LionIsThePublishedRule) {
  expect_published<LionOf, TypeParam>(
      plain_lion, [](const Element& e) { return e.a; }, 16);
}
TYPED_TEST(ElementRules, AdEMAMixIsThePublishedRule) {
  expect_published<AdEMAMixOf, TypeParam>(
      plain_ademamix, [](const Element& e) { return e.a; }, 16);
}
TYPED_TEST(ElementRules, ScheduleFreeIsThePublishedRule) {
  expect_published<ScheduleFreeOf, TypeParam>(
      plain_schedule_free, [](const Element& e) { return e.b; }, 160);
}
TYPED_TEST(ElementRules, CautiousAdamWDecaysWhereUpdateAndWeightHaveOneSign) {
  expect_published<AdamWOf, TypeParam>(
      plain_adamw, [](const Element& e) { return e.a; }, 16);
}

// One launch for several runs, with and without weights: the same bits as one for each.
template <class Rule, class T>
void expect_table_as_each() {
  std::vector<Vectors<T>> each;
  for (const std::size_t n : {3, 8192, 20001, 8191}) each.emplace_back(n);
  std::vector<Vectors<T>> together = each;
  std::vector<ElementRun<T>> runs;
  std::size_t pieces = 0;
  for (Vectors<T>& v : together) {
    v.a = v.master;
    runs.push_back(v.run(v.n != 20001, Rule::fields));
    runs.back().first = pieces;
    pieces += runs.back().pieces();
  }
  const auto table = table_in_space<Host>("runs", runs);
  for (Vectors<T>& v : each) v.a = v.master;
  for (int t = 1; t <= 3; ++t) {
    for (auto* const side : {&each, &together})
      for (Vectors<T>& v : *side)
        for (std::size_t i = 0; i < v.n + 2; ++i) v.gradient[i] = Acc<T>(gradient_at(i, t));
    Rule::template step<T>(t, true, ElementRuns<Host, T>{table, pieces});
    for (Vectors<T>& v : each) Rule::template step<T>(t, true, v.run(v.n != 20001, Rule::fields));
  }
  for (std::size_t i = 0; i < each.size(); ++i) {
    EXPECT_EQ(together[i].master, each[i].master) << i;
    EXPECT_EQ(together[i].a, each[i].a) << i;
    EXPECT_EQ(together[i].b, each[i].b) << i;
    EXPECT_EQ(together[i].c, each[i].c) << i;
    for (std::size_t k = 0; k < each[i].weight.size(); ++k)
      ASSERT_EQ(float(together[i].weight[k]), float(each[i].weight[k])) << i << ", " << k;
  }
}

TYPED_TEST(ElementRules, SeveralRunsAreUpdatedAsEach) {
  expect_table_as_each<LionOf, TypeParam>();
  expect_table_as_each<AdEMAMixOf, TypeParam>();
  expect_table_as_each<ScheduleFreeOf, TypeParam>();
}

template <class Rule, class T>
void expect_nan_in_the_weight() {
  Vectors<T> v(5);
  v.gradient[3] = std::numeric_limits<Acc<T>>::quiet_NaN();
  step_one<Rule>(v, 1, true, true);
  EXPECT_TRUE(std::isnan(v.master[3]));
  EXPECT_TRUE(std::isnan(float(v.weight[3])));
  EXPECT_FALSE(std::isnan(v.master[2]));
}

TYPED_TEST(ElementRules, NanReachesTheWeightAndTheFlag) {
  expect_nan_in_the_weight<LionOf, TypeParam>();
  expect_nan_in_the_weight<AdEMAMixOf, TypeParam>();
  expect_nan_in_the_weight<ScheduleFreeOf, TypeParam>();
  Vectors<TypeParam> v(9000);
  v.gradient[9000] = std::numeric_limits<Acc<TypeParam>>::infinity();
  double flag = 0;
  auto step = common<ScheduleFreeStep>(false);
  step.nonfinite = &flag;
  schedule_free<Host, TypeParam>(Host(), step, v.run(false, 2));
  EXPECT_EQ(flag, 1);
}

TEST(ElementRules, NothingIsUpdatedOfNothing) {
  Vectors<float> nothing(0);
  EXPECT_NO_THROW(step_one<LionOf>(nothing, 1, false, true));
  EXPECT_NO_THROW((lion<Host, float>(Host(), LionStep{}, ElementRuns<Host, float>{})));
}

TEST(ElementRules, WarmUpsBeginAtTheFastMomentumAndEndAtTheirValues) {
  EXPECT_EQ(warm_alpha(8, 100, 100), 8);
  EXPECT_EQ(warm_alpha(8, 25, 100), 2);
  EXPECT_EQ(warm_alpha(8, 1, 0), 8);
  EXPECT_EQ(warm_beta3(0.9, 0.9999, 100, 100), 0.9999);
  EXPECT_EQ(warm_beta3(0.9, 0.9999, 1, 0), 0.9999);
  EXPECT_NEAR(warm_beta3(0.9, 0.9999, 1, 1000000), 0.9, 1e-3);
  // The half-life log(1/2) / log(beta) rises in a line: half-way it is the mean of those of both ends.
  const auto half_life = [](double beta) { return std::log(0.5) / std::log(beta); };
  EXPECT_NEAR(half_life(warm_beta3(0.9, 0.9999, 50, 100)), (half_life(0.9) + half_life(0.9999)) / 2, 1e-6);
  EXPECT_EQ(warm_beta3(0, 0.5, 4, 3), 0.5);
  EXPECT_EQ(warm_beta3(0.5, 0, 1, 3), 0);
}

TEST(WeightMean, FollowsInALoopAndSwapsToTheBit) {
  constexpr std::size_t n = 5000;
  constexpr double tau = 7;
  std::vector<float> w(n), mean(n);
  std::vector<double> plain(n);
  for (int t = 1; t <= 9; ++t)
    for (std::size_t i = 0; i < n; ++i) {
      w[i] = std::sin(0.1f * static_cast<float>(i) + static_cast<float>(t));
      plain[i] = t == 1 ? w[i] : plain[i] + (static_cast<double>(w[i]) - plain[i]) / tau;
      if (t == 1) mean[i] = w[i];
      if (i + 1 == n && t > 1)
        follow_weights<Host, float>(Host(), Vector<const float, Host>(w.data(), n), tau,
                                    Vector<float, Host>(mean.data(), n));
    }
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(mean[i], plain[i], 9 * std::numeric_limits<float>::epsilon()) << i;
  const std::vector<float> w_before = w, mean_before = mean;
  swap_values<Host, float>(Host(), Vector<float, Host>(w.data(), n), Vector<float, Host>(mean.data(), n));
  EXPECT_EQ(w, mean_before);
  EXPECT_EQ(mean, w_before);
}

}  // namespace
}  // namespace sestina
