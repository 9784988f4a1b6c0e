// The scalar optimizer with each of its rules: numbers of groups, schedules of decay and cautious decay reach the
// update, averages start at the weights, and the mean of weights is that of a loop. The rules themselves are held to
// their papers by the tests of kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "core/optimizer/lookahead.hpp"
#include "core/optimizer/methods/adamw.hpp"
#include "core/optimizer/weight_ema.hpp"
#include "regression/unit/core/options_rig.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

constexpr std::int64_t element_updates = 6;
constexpr std::size_t element_count = 40;

double element_gradient(std::size_t i, std::int64_t t) {
  return 0.01 * (i % 3 == 0 ? -1 : 1) * (1 + 0.5 * std::sin(static_cast<double>(t) + 0.7 * static_cast<double>(i)));
}
double element_weight(std::size_t i) { return std::cos(2.1 * static_cast<double>(i)); }

// One vector that decays by a group, under a rule.
template <class Space>
class ElementRun {
 public:
  using View = Kokkos::View<float*, typename Space::memory_space>;
  explicit ElementRun(const OptimizerOptions& options) : gradient_("g", element_count), weight_("w", element_count) {
    reference::Array values(1, element_count);
    for (std::size_t i = 0; i < element_count; ++i) values(0, i) = static_cast<float>(element_weight(i));
    reference::set_values(weight_, values);
    TensorSpec spec;
    spec.name = "model.norm.weight";
    spec.rows = element_count;
    spec.role = Role::vector;
    optimizer_ = std::make_unique<AdamW<Space, float>>(
        Space{},
        std::vector{OwnedTensor<Space, float>{spec,
                                              Vector<const float, Space>(gradient_.data(), element_count),
                                              Vector<float, Space>(weight_.data(), element_count),
                                              {}}},
        options);
  }
  void step(std::int64_t t, double factor) {
    reference::Array values(1, element_count);
    for (std::size_t i = 0; i < element_count; ++i) values(0, i) = static_cast<float>(element_gradient(i, t));
    reference::set_values(gradient_, values);
    optimizer_->step(Space{}, t, factor, 0.5);
  }
  AdamW<Space, float>& optimizer() { return *optimizer_; }
  std::vector<double> weights() const { return reference::values_of(weight_).values; }
  std::vector<std::string> fields() const {
    std::vector<std::string> names;
    for (const StateField& field : optimizer_->state()) names.push_back(field.path.substr(field.path.rfind('/') + 1));
    return names;
  }

 private:
  View gradient_, weight_;
  std::unique_ptr<AdamW<Space, float>> optimizer_;
};

// lr 0.05 of the deck, doubled by the group; decay 0.2, betas and eps are the group's.
OptimizerOptions element_options(ElementRule rule) {
  OptimizerOptions options;
  options.kind = name(rule);
  options.adamw.rule = rule;
  options.adamw.lr = 0.05;
  options.adamw.warmup = 3;
  options.group.resize(1);
  options.group[0].match = "*norm*";
  options.group[0].lr_multiplier = 2;
  options.group[0].weight_decay = 0.2;
  options.group[0].beta1 = 0.8;
  options.group[0].beta2 = 0.7;
  options.group[0].eps = 1e-3;
  options.rules.cautious = true;
  options.schedule.decay = UpdateSchedule::Decay::cosine;
  options.schedule.steps = 10;
  return options;
}
double element_factor(std::int64_t t) { return t < 3 ? static_cast<double>(t) / 3 : 1; }
// Half a cosine to 0 in update 10, where update and weight have one sign.
double element_decay(std::int64_t t, double u, double w) {
  return u * w < 0 ? 0 : 0.2 * 0.5 * (1 + std::cos(std::numbers::pi * static_cast<double>(t) / 10)) * w;
}

template <class Space>
class ElementRuleOf : public testing::Test {};
TYPED_TEST_SUITE(ElementRuleOf, reference::RunSpaces, reference::SpaceNames);

// Calls update(i, t, lr, gradient, weight) of a rule in double, which returns what is subtracted over lr without decay,
// and compares the weights of all updates.
template <class Space, class Update>
void expect_element_run(ElementRule rule, const Update& update) {
  ElementRun<Space> run(element_options(rule));
  std::vector<double> plain = run.weights();
  for (std::int64_t t = 1; t <= element_updates; ++t) {
    run.step(t, element_factor(t));
    for (std::size_t i = 0; i < element_count; ++i) {
      const double u = update(i, t, 0.5 * static_cast<double>(static_cast<float>(element_gradient(i, t))));
      plain[i] -= 0.1 * element_factor(t) * (u + element_decay(t, u, plain[i]));
    }
    const std::vector<double> got = run.weights();
    // A dozen roundings of an update.
    const double allowed = 16 * static_cast<double>(t) * std::numeric_limits<float>::epsilon();
    for (std::size_t i = 0; i < element_count; ++i) ASSERT_NEAR(got[i], plain[i], allowed) << i << ", update " << t;
  }
  EXPECT_EQ(run.fields(), element_fields(rule));
}

TYPED_TEST(ElementRuleOf, AdamWTakesTheNumbersOfItsGroup) {
  std::vector<double> m(element_count), v(element_count);
  expect_element_run<TypeParam>(ElementRule::adamw, [&](std::size_t i, std::int64_t t, double g) {
    m[i] = 0.8 * m[i] + 0.2 * g;
    v[i] = 0.7 * v[i] + 0.3 * g * g;
    const auto n = static_cast<double>(t);
    return m[i] / (1 - std::pow(0.8, n)) / (std::sqrt(v[i] / (1 - std::pow(0.7, n))) + 1e-3);
  });
}

TYPED_TEST(ElementRuleOf, LionTakesTheNumbersOfItsGroup) {
  std::vector<double> m(element_count);
  expect_element_run<TypeParam>(ElementRule::lion, [&](std::size_t i, std::int64_t, double g) {
    const double mixed = 0.8 * m[i] + 0.2 * g;
    m[i] = 0.7 * m[i] + 0.3 * g;
    return mixed > 0 ? 1.0 : -1.0;
  });
}

TYPED_TEST(ElementRuleOf, AdEMAMixTakesTheNumbersOfItsGroup) {
  std::vector<double> m(element_count), s(element_count), v(element_count);
  expect_element_run<TypeParam>(ElementRule::ademamix, [&](std::size_t i, std::int64_t t, double g) {
    const auto n = static_cast<double>(t);
    const double part = std::min(1.0, n / 3), start = std::log(0.8), end = std::log(0.9999);
    const double beta3 = std::min(0.9999, std::exp(start * end / ((1 - part) * end + part * start)));
    m[i] = 0.8 * m[i] + 0.2 * g;
    s[i] = beta3 * s[i] + (1 - beta3) * g;
    v[i] = 0.7 * v[i] + 0.3 * g * g;
    return (m[i] / (1 - std::pow(0.8, n)) + 8 * part * s[i]) / (std::sqrt(v[i] / (1 - std::pow(0.7, n))) + 1e-3);
  });
}

// Weights and average in double; a swap shows the average in the place of the weights, and another one undoes it.
TYPED_TEST(ElementRuleOf, ScheduleFreeTrainsBetweenIterateAndAverage) {
  ElementRun<TypeParam> run(element_options(ElementRule::schedule_free));
  std::vector<double> y = run.weights(), z = y, x = y, v(element_count);
  double sum = 0;
  for (std::int64_t t = 1; t <= element_updates; ++t) {
    run.step(t, element_factor(t));
    const double lr = 0.1 * element_factor(t), weight = std::pow(std::min(1.0, static_cast<double>(t) / 3), 2);
    sum += weight;
    for (std::size_t i = 0; i < element_count; ++i) {
      const double g = 0.5 * static_cast<double>(static_cast<float>(element_gradient(i, t)));
      v[i] = 0.7 * v[i] + 0.3 * g * g;
      const double u = g / (std::sqrt(v[i] / (1 - std::pow(0.7, static_cast<double>(t)))) + 1e-3);
      z[i] -= lr * (u + element_decay(t, u, y[i]));
      x[i] += weight / sum * (z[i] - x[i]);
      y[i] = 0.2 * z[i] + 0.8 * x[i];
    }
  }
  // A dozen roundings of an update, times 1 / (1 - beta1) where the iterate is found again.
  const double allowed = 5 * 16 * element_updates * static_cast<double>(std::numeric_limits<float>::epsilon());
  const auto expect_near = [&](const std::vector<double>& want) {
    const std::vector<double> got = run.weights();
    for (std::size_t i = 0; i < element_count; ++i) ASSERT_NEAR(got[i], want[i], allowed) << i;
  };
  const std::vector<double> trained = run.weights();
  expect_near(y);
  run.optimizer().swap_average(TypeParam{});
  expect_near(x);
  run.optimizer().swap_average(TypeParam{});
  EXPECT_EQ(run.weights(), trained);
  run.optimizer().start_average(TypeParam{});
  run.optimizer().swap_average(TypeParam{});
  EXPECT_EQ(run.weights(), trained);
  EXPECT_EQ(run.fields(), element_fields(ElementRule::schedule_free));
}

// Two weights that lie side by side and one apart: each mean is that of a loop, in the slab of its weight.
TYPED_TEST(ElementRuleOf, MeanOfWeightsIsThatOfALoop) {
  using View = Kokkos::View<float*, typename TypeParam::memory_space>;
  constexpr double tau = 4;
  const View both("both", 30), apart("apart", 12);
  const auto field = [](const char* path, const float* data, std::int64_t begin, std::int64_t end) {
    StateField weight;
    weight.path = path;
    weight.shape = {20};
    weight.row_begin = begin;
    weight.row_end = end;
    weight.data = data;
    return weight;
  };
  WeightEma<TypeParam> ema(TypeParam{},
                           {field("/model/a", both.data(), 0, 20), field("/model/b", both.data() + 20, 10, 20),
                            field("/model/c", apart.data(), 0, 12)},
                           tau);
  std::vector<double> plain(42), now(42);
  for (int t = 1; t <= 5; ++t) {
    reference::Array first(1, 30), second(1, 12);
    for (std::size_t i = 0; i < 42; ++i) {
      now[i] = static_cast<double>(std::sin(0.3f * static_cast<float>(i) + static_cast<float>(t)));
      (i < 30 ? first(0, i) : second(0, i - 30)) = now[i];
      plain[i] = t == 1 ? now[i] : plain[i] + (now[i] - plain[i]) / tau;
    }
    reference::set_values(both, first);
    reference::set_values(apart, second);
    ema.follow(TypeParam{}, t);
  }
  const std::vector<StateField> fields = ema.fields();
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[1].path, "/optimizer/b/ema");
  EXPECT_EQ(fields[1].row_begin, 10);
  std::size_t at = 0;
  const auto expect_values = [&](const std::vector<double>& want) {
    at = 0;
    for (const StateField& mean : ema.fields()) {
      const std::size_t n = mean.bytes() / sizeof(float);
      const reference::Array got = reference::values_of(View(const_cast<float*>(static_cast<const float*>(mean.data)),
                                                             n));  // a view of the tests does not know const
      for (std::size_t i = 0; i < n; ++i, ++at) ASSERT_NEAR(got(0, i), want[at], 1e-6) << mean.path;
    }
  };
  expect_values(plain);
  ema.start(TypeParam{});
  expect_values(now);
}

// EMA-Nesterov (arXiv 2605.25395) around an update that depends on the weights from which it steps, in double: moves in
// updates 3 to 6 of 8, the rate falling meanwhile; update 5 is first refused, and leaves nothing.
TYPED_TEST(ElementRuleOf, LookaheadIsThePublishedRule) {
  using View = Kokkos::View<float*, typename TypeParam::memory_space>;
  constexpr std::size_t n = 30;
  const View weights("weights", n);
  reference::Array now(1, n);
  for (std::size_t i = 0; i < n; ++i) now(0, i) = static_cast<float>(element_weight(i));
  reference::set_values(weights, now);
  StateField field;
  field.path = "/model/a";
  field.shape = {n};
  field.row_end = n;
  field.data = weights.data();
  Lookahead<TypeParam> lookahead(TypeParam{}, {field}, {.factor = 0.5, .ema = 0.75, .from = 2, .until = 6});
  const auto update = [](double w, std::size_t i, std::int64_t t) { return 0.9 * w - 0.1 * element_gradient(i, t); };
  std::vector<double> w = now.values, mean(n);
  for (std::int64_t t = 1; t <= 8; ++t) {
    const double rate = 1 - 0.1 * static_cast<double>(t);
    if (t == 5) {
      const std::vector<double> before = reference::values_of(weights).values;
      lookahead.begin(TypeParam{}, t, rate);
      EXPECT_NE(reference::values_of(weights).values, before);
      EXPECT_TRUE(lookahead.withdraw(TypeParam{}));
      EXPECT_EQ(reference::values_of(weights).values, before);
      EXPECT_FALSE(lookahead.withdraw(TypeParam{}));
    }
    lookahead.begin(TypeParam{}, t, rate);
    now = reference::values_of(weights);
    for (std::size_t i = 0; i < n; ++i) now(0, i) = static_cast<float>(update(now(0, i), i, t));
    reference::set_values(weights, now);
    lookahead.end(TypeParam{}, t);
    const double b = t > 2 && t <= 6 ? 0.5 * rate : 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double after = update(w[i] + b * mean[i], i, t);
      if (t <= 6) mean[i] = 0.75 * mean[i] + 0.25 * (after - w[i]);
      w[i] = after;
    }
    const std::vector<double> got = reference::values_of(weights).values;
    // A few roundings of weights of size 1 in an update; moves carry those of the means on.
    const double allowed = 8 * static_cast<double>(t) * std::numeric_limits<float>::epsilon();
    for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(got[i], w[i], allowed) << i << ", update " << t;
  }
  const StateField kept = lookahead.fields().front();
  EXPECT_EQ(kept.path, "/optimizer/a/displacement");
  const View means(const_cast<float*>(static_cast<const float*>(kept.data)), n);
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(reference::values_of(means)(0, i), mean[i], 1e-6) << i;
}

// What a deck says of the rules.

TEST(ElementOptions, EachRuleHasItsKeysAndDefaults) {
  const AdamWOptions lion = read("[optimizer]\nkind = \"lion\"\n").optimizer.adamw;
  EXPECT_EQ(lion.rule, ElementRule::lion);
  EXPECT_EQ(lion.beta1, 0.95);
  EXPECT_EQ(lion.beta2, 0.98);
  const AdamWOptions mix =
      read("[run]\nsteps = 70\n[optimizer]\nkind = \"ademamix\"\nalpha = 5\nbeta3 = 0.99\n").optimizer.adamw;
  EXPECT_EQ(mix.rule, ElementRule::ademamix);
  EXPECT_EQ(mix.alpha, 5);
  EXPECT_EQ(mix.beta3, 0.99);
  EXPECT_EQ(mix.beta2, 0.999);
  EXPECT_EQ(mix.warmup, 70);
  const Options free =
      read("[schedule]\nkind = \"constant\"\nwarmup_steps = 9\n[optimizer]\nkind = \"schedule-free\"\n");
  EXPECT_EQ(free.optimizer.adamw.warmup, 9);
  EXPECT_TRUE(free.optimizer.adamw.averages());
  EXPECT_EQ(element_rule_warning(free.optimizer, free.schedule), "");
  const Options falling = read("[optimizer]\nkind = \"schedule-free\"\n");
  EXPECT_NE(element_rule_warning(falling.optimizer, falling.schedule).find("schedule.kind = \"constant\""),
            std::string::npos);
  expect_error("[optimizer]\nkind = \"lion\"\neps = 1e-8\n", "optimizer.eps");
  expect_error("[optimizer]\nkind = \"adamw\"\nalpha = 5\n", "optimizer.alpha");
}

TEST(ElementOptions, WhatAMatrixOptimizerLeavesMayGoToAnotherRule) {
  const OptimizerOptions muon = read(
                                    "[optimizer]\nkind = \"muon\"\n[optimizer.scalar]\nkind = \"lion\"\nbeta1 = 0.9\n"
                                    "[[optimizer.group]]\nmatch = \"*up_proj*\"\nkind = \"lion\"\n")
                                    .optimizer;
  EXPECT_EQ(muon.adamw.rule, ElementRule::lion);
  EXPECT_EQ(muon.adamw.beta1, 0.9);
  EXPECT_EQ(muon.group[0].kind, "lion");
  expect_error("[optimizer]\nkind = \"muon\"\n[optimizer.scalar]\nkind = \"schedule-free\"\n",
               "optimizer.scalar.kind: the model would be the average");
}

TEST(ElementOptions, WhatARuleCannotDoIsRefusedWithTheReason) {
  const std::string lion = "[optimizer]\nkind = \"lion\"\n", free = "[optimizer]\nkind = \"schedule-free\"\n";
  for (const char* key : {"hyperball = true", "relative_update = true", "update_floor = 0.1", "row_floor = 0.1",
                          "max_update_rms = 1", "radial_brake = 0.5", "radius_pin = true"}) {
    expect_error(lion + key + "\n", "needs norms of whole matrices");
    expect_error(std::string("[optimizer]\n") + key + "\n", "needs norms of whole matrices");
  }
  expect_error(lion + "state_bits = 8\n", "optimizer.state_bits: \"lion\" keeps its state in 32 bits");
  expect_error(lion + "[[optimizer.group]]\nmatch = \"*\"\neps = 1e-3\n", "optimizer.group.0.eps");
  expect_error(free + "qk_clip = 100\n", "optimizer.qk_clip");
  expect_error(free + "[model.linear]\nform = \"lora\"\n", "average of the parts of a weight");
  expect_error("[train]\nema_tau = 10\n[model.linear]\nform = \"lora\"\n", "train.ema_tau");
  expect_error("[train]\nema_tau = 0.5\n", "train.ema_tau");
  const std::string ahead = "[train]\nlookahead = {factor = 0.3}\n";
  expect_error(ahead + "[model.linear]\nform = \"lora\"\n", "parts of a weight that move on by themselves");
  expect_error(ahead + free, "takes gradients at a point of its own");
  expect_error(ahead + "[parallel]\npp = 2\nschedule = \"async-1f1b\"\n", "asynchronous pipeline");
  expect_error(ahead + "[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\nmode = \"async\"\nvisibility = \"eager\"\n" +
                   "[parallel]\ndp = 2\npartition = \"replicated\"\n",
               "displacements of their own");
  EXPECT_EQ(read(lion + "cautious = true\ndecay_schedule = \"rate\"\n[train]\nema_tau = 10\n").train.ema_tau, 10);
}

// As the paper's contest entry has it: a rate of 0.3, moves from update 301 on, over two thirds of the run.
TEST(ElementOptions, LookaheadHasTheNumbersOfItsSource) {
  const LookaheadOptions off = read("[run]\nsteps = 3000\n").train.lookahead;
  EXPECT_EQ(off.factor, 0);
  EXPECT_EQ(off.ema, 0.99);
  EXPECT_EQ(off.from, 300);
  EXPECT_EQ(off.until, 2000);
  const LookaheadOptions on =
      read("[run]\nsteps = 3000\n[schedule]\nsteps = 600\n[train.lookahead]\nfactor = 0.6\nfrom = 30\n")
          .train.lookahead;
  EXPECT_EQ(on.factor, 0.6);
  EXPECT_EQ(on.from, 30);
  EXPECT_EQ(on.until, 400);
}

// A group of matrices alone has no use for the numbers of the elementwise rule; with another tensor, or with a rule for
// all of them, it has.
TEST(ElementOptions, NumbersOfGroupsNeedATensorThatTheRuleUpdates) {
  const auto problem = [](const std::string& kind, const std::string& match) {
    Deck deck;
    deck.add_text(
        model + "[optimizer]\nkind = \"" + kind + "\"\n[[optimizer.group]]\nmatch = \"" + match + "\"\nbeta2 = 0.9\n",
        "a.toml", "/folder");
    const Options options = Options::read(deck);
    require_matching_groups(deck, options);
    return complaint(deck);
  };
  EXPECT_NE(problem("muon", "*q_proj*").find("optimizer.group.0.beta2: the group has only matrices"),
            std::string::npos);
  EXPECT_EQ(problem("muon", "*"), "");
  EXPECT_EQ(problem("muon", "*norm*"), "");
  EXPECT_EQ(problem("lion", "*q_proj*"), "");
}

}  // namespace
}  // namespace sestina
