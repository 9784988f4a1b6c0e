// The sets of Newton-Schulz coefficients against what they do to singular values in exact arithmetic; Muon, NorMuon and
// AdaMuon against their rules in double. What every matrix optimizer must do is in test_matrix_kinds.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/methods/muon.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"
#include "kernels/optimizer/newton_schulz.hpp"
#include "kernels/optimizer/newton_schulz_step.hpp"
#include "regression/unit/core/keys_by_name.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

struct Bounds {
  const char* set;
  std::int64_t steps;
  double least, most;  // of what becomes of singular values in [.01, 1] of the Frobenius norm
};
constexpr Bounds published[] = {{"simple", 5, .682, 1.134},        {"quintic", 5, .978, 1.032},
                                {"polar_express", 5, .870, 1.124}, {"polar_express", 8, 1.0000, 1.0000},
                                {"polar_express", 11, 1., 1.},     {"polar_express_dion", 5, .859, 1.141},
                                {"cans", 5, .884, 1.120},          {"deepseekv4", 10, 1.0000, 1.0005},
                                {"cubic5", 5, .774, 1.300},        {"qwen_express", 8, 1.0000, 1.0000}};

using namespace reference;

template <class Space>
class NewtonSchulzSets : public testing::Test {};
TYPED_TEST_SUITE(NewtonSchulzSets, StreamSpaces, SpaceNames);

// diag(x, sqrt(1 - x^2)) has norm 1, so its singular values are what they are after normalisation.
TYPED_TEST(NewtonSchulzSets, SingularValuesEndWhereTheSetSays) {
  using Space = TypeParam;
  const Space exec;
  Gemm<Space> gemm(exec);
  Workspace<Space> workspace(bytes_taken<Space>([&](auto& counter) { declare_orthogonalize<Space>(counter, 2, 3); }));
  const Field<float, Space> given(2, 3), result(2, 3);
  for (const Bounds& want : published) {
    const auto steps = newton_schulz_steps(want.set, want.steps);
    double least = 2, most = 0;
    for (double x = 0.01; x <= std::sqrt(0.5); x *= 1.005) {
      Array in(2, 3);
      in(0, 0) = x;
      in(1, 1) = std::sqrt(1 - x * x);
      set_values(given.matrix(), in);
      orthogonalize<Space>(exec, gemm, workspace, {steps, 1e-15}, false, given.read(), result.matrix());
      const Array out = result.get();
      for (const double value : {out(0, 0), out(1, 1)}) {
        least = std::min(least, value);
        most = std::max(most, value);
      }
      EXPECT_EQ(out(0, 1), 0);
      EXPECT_EQ(out(1, 2), 0);
    }
    // Half a unit of the bounds' last digit, and rounding in float; the scan misses the extremes by little.
    EXPECT_GE(least, want.least - 0.001) << want.set << " " << want.steps;
    EXPECT_LE(most, want.most + 0.001) << want.set << " " << want.steps;
    EXPECT_LE(least, want.least + 0.01) << want.set << " " << want.steps;
    EXPECT_GE(most, want.most - 0.01) << want.set << " " << want.steps;
  }
}

TEST(NewtonSchulzSteps, MoreAndFewerStepsThanEntries) {
  for (const std::string& name : newton_schulz_set_names()) {
    const auto usual = newton_schulz_steps(name, 0);
    EXPECT_EQ(usual.size(), name == "deepseekv4" ? 10 : name == "polar_express" || name == "qwen_express" ? 8 : 5);
    if (name == "cubic5") continue;
    EXPECT_EQ(newton_schulz_steps(name, 3).size(), 3u);
    const auto more = newton_schulz_steps(name, 13);
    ASSERT_EQ(more.size(), 13u);
    const bool cycles = name == "simple" || name == "quintic";
    EXPECT_EQ(more[12].a, cycles ? usual[12 % usual.size()].a : usual.back().a) << name;
  }
  EXPECT_EQ(newton_schulz_set_names().front(), "simple");
  EXPECT_THROW(newton_schulz_steps("cubic5", 4), Error);
  EXPECT_THROW(newton_schulz_steps("aol", 5), Error);
}

// Muon and its relatives in double, as their rules are written.
struct Reference {
  const MatrixOptions& options;
  std::size_t m, n;
  std::vector<double> weight, momentum = std::vector<double>(m * n), second = std::vector<double>(m * n);
  std::vector<NewtonSchulzStep> own_steps = {};  // ns_coefficients; empty: ns_set

  void step(const std::vector<float>& gradient, double lr, double weight_decay, double clip,
            std::optional<double> scheduled = {}) {
    const double mu = scheduled.value_or(number_of(options, "momentum"));
    const bool ema = word_of(options, "momentum_form") == "ema", nesterov = (number_of(options, "nesterov") != 0);
    std::vector<double> u(m * n);
    for (std::size_t i = 0; i < u.size(); ++i) {
      const double g = clip * gradient[i];
      momentum[i] = ema ? momentum[i] + (1 - mu) * (g - momentum[i]) : mu * momentum[i] + g;
      const double ahead = ema ? g + mu * (momentum[i] - g) : g + mu * momentum[i];
      u[i] = nesterov ? ahead : momentum[i];
    }
    const auto norm = word_of(options, "ns_normalize") == "add" ? NewtonSchulzNorm::add : NewtonSchulzNorm::max;
    const auto steps =
        own_steps.empty()
            ? newton_schulz_steps(word_of(options, "ns_set"), static_cast<std::int64_t>(number_of(options, "ns_steps")))
            : own_steps;
    NewtonSchulz ns = {steps, number_of(options, "ns_eps"), norm};
    ns.gram_norm = word_of(options, "ns_norm") == "gram";
    ns.equal_rows = number_of(options, "row_equilibration") != 0;
    ns.snap = number_of(options, "norm_snap") != 0;
    newton_schulz_plain(ns, m, n, u);
    if (options.kind != "muon") adapt(u);
    const double scale = number_of(options, "extra_scale") * shape_scale(word_of(options, "scale"));
    for (std::size_t i = 0; i < u.size(); ++i) weight[i] = (1 - lr * weight_decay) * weight[i] - lr * scale * u[i];
  }

  double shape_scale(const std::string& word) const {
    const double rows = double(m), cols = double(n), longest = std::max(rows, cols);
    if (word == "match_rms_adamw") return 0.2 * std::sqrt(longest);
    if (word == "spectral") return std::sqrt(longest);
    if (word == "unit_rms_norm") return std::sqrt(rows / cols);
    return rows > cols ? std::sqrt(rows / cols) : 1;
  }

  // NorMuon keeps its mean in every element of a row or column here.
  void adapt(std::vector<double>& o) {
    const double rate = 1 - number_of(options, "beta2"), eps = number_of(options, "eps");
    double before = 0, after = 0;
    std::vector<double> divided(o.size()), means(std::max(m, n));  // of squares, of each row or column
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j) means[m >= n ? i : j] += o[i * n + j] * o[i * n + j] / double(std::min(m, n));
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        const std::size_t at = i * n + j;
        const double mean = options.kind == "adamuon" ? o[at] * o[at] : means[m >= n ? i : j];
        second[at] += rate * (mean - second[at]);
        divided[at] = options.kind == "adamuon" ? o[at] / (std::sqrt(second[at]) + eps)
                                                : o[at] / std::sqrt(std::max(second[at], eps));
        before += o[at] * o[at];
        after += divided[at] * divided[at];
      }
    for (std::size_t i = 0; i < o.size(); ++i)
      o[i] = divided[i] * ((number_of(options, "keep_norm") != 0) && after > 0 ? std::sqrt(before / after) : 1);
  }
};

MatrixOptions options_of(const char* kind) { return default_options(*find_matrix_kind(kind)); }

// Steps of an optimizer on a space, with gradients from the counter-based generator. `gradient` and `weight` are what
// the host sees of them.
template <class Space>
struct MuonRig {
  MuonRig(const MatrixOptions& options, std::size_t m, std::size_t n, bool with_rounded = false)
      : optimizer(make_matrix_optimizer<Space>(Space(), options, {"/optimizer/w", m, n, 0})),
        stream{Space(), Gemm<Space>(Space(), true), Workspace<Space>(bytes_taken<Space>([&](auto& counter) {
                 declare_update<Space>(counter, options, m, n);
               }))},
        m(m),
        n(n),
        gradient(m * n),
        weight(m * n),
        with_rounded(with_rounded),
        gradient_there(m, n),
        weight_there(m, n),
        rounded_there(m, n) {
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(normal(1, i));
  }
  void step(std::int64_t t, double lr = 0.1, double weight_decay = 0.1, double clip = 1,
            std::optional<double> momentum = {}) {
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = static_cast<float>(normal(static_cast<std::uint64_t>(t) + 7, i));
    set_values(gradient_there.matrix(), array(gradient));
    set_values(weight_there.matrix(), array(weight));
    OwnedMatrix<Space> matrix{"w", gradient_there.read(), weight_there.matrix(), {}};
    if (with_rounded) matrix.weight = rounded_there.matrix();
    optimizer->step(stream, {t, lr, weight_decay, clip, momentum}, matrix);
    const Array moved = weight_there.get();
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(moved.values[i]);
  }
  Array array(const std::vector<float>& values) const {
    Array a(m, n);
    a.values.assign(values.begin(), values.end());
    return a;
  }

  std::unique_ptr<MatrixOptimizer<Space>> optimizer;
  Stream<Space> stream;
  std::size_t m, n;
  std::vector<float> gradient, weight;
  bool with_rounded;
  Field<float, Space> gradient_there, weight_there;
  Field<bf16, Space> rounded_there;
};

// Five steps of 5 iterations in float, each of which may amplify what came before by its largest slope (about 3.4 where
// a singular value is small); measured errors are 30 times smaller. own_steps: those of the key ns_coefficients;
// schedule: the momentum of each update.
template <class Space>
void expect_rule(const MatrixOptions& options, std::size_t m, std::size_t n,
                 const std::vector<NewtonSchulzStep>& own_steps = {}, const std::vector<double>& schedule = {}) {
  MuonRig<Space> rig(options, m, n);
  Reference reference{options, m, n, {rig.weight.begin(), rig.weight.end()}};
  reference.own_steps = own_steps;
  const double tolerance = 300 * double(m + n) * std::numeric_limits<float>::epsilon();
  for (std::int64_t t = 1; t <= 5; ++t) {
    std::optional<double> momentum;
    if (!schedule.empty()) momentum = schedule[static_cast<std::size_t>(t - 1)];
    rig.step(t, 0.1, 0.1, 0.5, momentum);
    reference.step(rig.gradient, 0.1, 0.1, 0.5, momentum);
    double squares = 0, error = 0;
    for (std::size_t i = 0; i < m * n; ++i) {
      squares += reference.weight[i] * reference.weight[i];
      error = std::max(error, std::abs(rig.weight[i] - reference.weight[i]));
    }
    ASSERT_LE(error, tolerance * std::sqrt(squares / double(m * n)))
        << options.kind << " " << m << " x " << n << " update " << t;
  }
}

constexpr std::pair<std::size_t, std::size_t> muon_shapes[] = {{12, 8}, {8, 12}, {9, 9},   {33, 7},
                                                               {1, 16}, {16, 1}, {70, 40}, {40, 300}};

constexpr std::pair<std::size_t, std::size_t> few_shapes[] = {{12, 8}, {8, 12}, {9, 9}, {33, 7}, {1, 16}};

template <class Space>
class Muon : public testing::Test {};
TYPED_TEST_SUITE(Muon, StreamSpaces, SpaceNames);

TYPED_TEST(Muon, FollowsItsRuleInEveryWording) {
  for (const KindKey& key : keys_of(default_options(*find_matrix_kind("muon"))))
    for (const std::string& word : key.choices) {
      if (key.name == "ns_precision" || word == "deepseekv4") continue;  // 10 steps of simple are not accurate
      MatrixOptions options = options_of("muon");
      options.set(key.name, word);
      SCOPED_TRACE(key.name + " = " + word);
      expect_rule<TypeParam>(options, 12, 8);
      expect_rule<TypeParam>(options, 8, 12);
    }
  for (const auto& [m, n] : muon_shapes) {
    MatrixOptions options = options_of("muon");
    options.set("nesterov", m % 2);
    options.set("extra_scale", 0.5);
    expect_rule<TypeParam>(options, m, n);
  }
}

// Coefficients of the deck take the place of a set, as many as there are; one of them is a cubic step.
TYPED_TEST(Muon, TakesCoefficientsOfTheDeck) {
  const std::vector<NewtonSchulzStep> own = {{2, -1.5, 0.5}, {3.4445, -4.7750, 2.0315}, {1.5, -0.5, 0}};
  for (const char* kind : {"muon", "normuon"}) {
    MatrixOptions options = options_of(kind);
    auto* muon = std::any_cast<MuonOptions>(&options.keys);
    if (muon == nullptr) muon = std::any_cast<MuonMomentOptions>(&options.keys);
    for (const auto& [a, b, c] : own) muon->ns_coefficients.push_back({a, b, c});
    for (const auto& [m, n] : few_shapes) expect_rule<TypeParam>(options, m, n, own);
    EXPECT_EQ(find_matrix_kind(kind)->newton_schulz(options), 3);
    EXPECT_EQ(find_matrix_kind(kind)->work(options, 8, 12).update, 3 * 3 * 12 * 64 + 2 * 512);
  }
}

// Balances and the norm by the first product, in both forms and with what follows the direction.
TYPED_TEST(Muon, BalancesFollowTheirRules) {
  for (const char* kind : {"muon", "normuon"})
    for (const char* form : {"plain", "gram"})
      for (const auto& [m, n] : few_shapes) {
        MatrixOptions options = options_of(kind);
        options.set("ns_form", form);
        options.set("ns_norm", "gram");
        options.set("row_equilibration", 1);
        expect_rule<TypeParam>(options, m, n);
        options.set("norm_snap", 1);
        expect_rule<TypeParam>(options, m, n);
      }
}

// The work is that of the form that is taken: five steps of 3 s^2 l + s^3, or by hand for l = 4 s.
TEST(MuonWork, IsThatOfItsForm) {
  MatrixOptions options = options_of("muon");
  const auto work = [&](const char* form, std::int64_t rows, std::int64_t cols) {
    options.set("ns_form", form);
    return find_matrix_kind("muon")->work(options, rows, cols).update;
  };
  EXPECT_EQ(work("plain", 16, 64), 65 * 4096);
  EXPECT_EQ(work("gram", 64, 16), 44 * 4096);
  EXPECT_EQ(work("auto", 16, 64), 44 * 4096);
  EXPECT_EQ(work("auto", 16, 16), 20 * 4096);
  EXPECT_EQ(work("gram", 16, 16), 26 * 4096);
}

// The momentum of a schedule takes the place of the kind's own, in both forms, with and without Nesterov's step.
TYPED_TEST(Muon, FollowsAMomentumSchedule) {
  for (const char* kind : {"muon", "normuon", "adamuon"})
    for (const char* form : {"ema", "sum"})
      for (const double nesterov : {0.0, 1.0}) {
        MatrixOptions options = options_of(kind);
        options.set("momentum_form", form);
        options.set("nesterov", nesterov);
        if (options.has("eps")) options.set("eps", 0.01);
        expect_rule<TypeParam>(options, 12, 8, {}, {0.85, 0.9, 0.95, 0.5, 0});
      }
}

TYPED_TEST(Muon, NorMuonFollowsItsRule) {
  for (const double keep_norm : {1.0, 0.0})
    for (const auto& [m, n] : muon_shapes) {
      MatrixOptions options = options_of("normuon");
      options.set("keep_norm", keep_norm);
      expect_rule<TypeParam>(options, m, n);
      options.set("eps", 0.02);  // larger than some means
      expect_rule<TypeParam>(options, m, n);
    }
}

TYPED_TEST(Muon, AdaMuonFollowsItsRule) {
  for (const double keep_norm : {1.0, 0.0})
    for (const auto& [m, n] : muon_shapes) {
      MatrixOptions options = options_of("adamuon");
      options.set("keep_norm", keep_norm);
      options.set("eps", 0.01);  // else the first steps are signs, also of what is only rounding
      expect_rule<TypeParam>(options, m, n);
    }
}

// With keep_norm the movement is as long as that of Muon, whatever the second moment.
TYPED_TEST(Muon, RelativesKeepTheLengthOfTheStep) {
  const auto length = [](const char* kind) {
    MuonRig<TypeParam> rig(options_of(kind), 24, 40);
    const std::vector<float> before = rig.weight;
    for (std::int64_t t = 1; t <= 3; ++t) {
      rig.weight = before;
      rig.step(t, 1, 0);
    }
    double squares = 0;
    for (std::size_t i = 0; i < before.size(); ++i) squares += std::pow(double(rig.weight[i]) - double(before[i]), 2);
    return std::sqrt(squares);
  };
  const double muon = length("muon");
  EXPECT_NEAR(length("normuon"), muon, 1e-5 * muon);
  EXPECT_NEAR(length("adamuon"), muon, 1e-5 * muon);
}

// "auto": bf16 where the model computes with a rounded copy; "fp32" is the same with and without one.
TYPED_TEST(Muon, PrecisionFollowsTheWeights) {
  const auto run = [](const char* precision, bool with_rounded) {
    MatrixOptions options = options_of("muon");
    options.set("ns_precision", precision);
    MuonRig<TypeParam> rig(options, 12, 8, with_rounded);
    for (std::int64_t t = 1; t <= 3; ++t) rig.step(t);
    return rig.weight;
  };
  EXPECT_EQ(run("auto", false), run("fp32", false));
  EXPECT_EQ(run("fp32", true), run("fp32", false));
  EXPECT_EQ(run("auto", true), run("bf16", false));
  EXPECT_NE(run("bf16", false), run("fp32", false));
}

}  // namespace
}  // namespace sestina
