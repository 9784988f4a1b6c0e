// Biases of the choices of routers against plain loops: choices by biased scores, weights and gradients by scores
// alone, moves against the loads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/model/router.hpp"
#include "regression/unit/core/model_rig.hpp"
#include "regression/unit/core/stage_rig.hpp"

namespace sestina {
namespace {

template <class A>
using Table = Kokkos::View<A**, Kokkos::LayoutRight, Kokkos::HostSpace>;

// The scores of one token's logits.
std::vector<double> plain_scores(const std::vector<double>& logits, bool sigmoid) {
  std::vector<double> scores;
  double sum = 0;
  for (const double z : logits) sum += std::exp(z);
  for (const double z : logits) scores.push_back(sigmoid ? 1 / (1 + std::exp(-z)) : std::exp(z) / sum);
  return scores;
}

// The experts with the largest sums of score and bias, the largest first, of equal ones the lower number.
std::vector<int> plain_choice(const std::vector<double>& scores, const std::vector<double>& bias, int k) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto sum = [&](int e) { return scores[static_cast<std::size_t>(e)] + bias[static_cast<std::size_t>(e)]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return sum(a) > sum(b); });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

TEST(RouterBias, IsForTheChoiceAlone) {
  constexpr int n = 50, experts = 6, k = 2;
  std::vector<double> logits(n * experts), bias(experts);
  normals(3, 0, logits.size(), 1.0, logits.data());
  normals(4, 0, bias.size(), 0.2, bias.data());
  for (const bool sigmoid : {false, true})
    for (const bool normalised : {false, true}) {
      const Table<double> scores("scores", n, experts), weight("weight", n, k);
      const Table<std::int32_t> chosen("chosen", n, k);
      const Kokkos::View<double*, Kokkos::HostSpace> log_sums("log_sums", n);
      std::copy(logits.begin(), logits.end(), scores.data());
      choose_experts<Host, double>(Host(), {normalised, sigmoid, 0, 0},
                                   Vector<const double, Host>(bias.data(), experts), scores, chosen, weight, log_sums);
      int moved = 0;
      for (int i = 0; i < n; ++i) {
        const std::vector<double> own(logits.begin() + i * experts, logits.begin() + (i + 1) * experts),
            s = plain_scores(own, sigmoid);
        const std::vector<int> want = plain_choice(s, bias, k);
        moved += want != plain_choice(s, std::vector<double>(experts), k) ? 1 : 0;
        double sum = 0;
        for (const int e : want) sum += s[static_cast<std::size_t>(e)];
        for (int j = 0; j < k; ++j) {
          ASSERT_EQ(chosen(i, j), want[static_cast<std::size_t>(j)]) << i;
          EXPECT_NEAR(weight(i, j), s[static_cast<std::size_t>(chosen(i, j))] / (normalised ? sum : 1), 1e-15);
        }
      }
      EXPECT_GT(moved, 5) << sigmoid;
    }
}

TEST(RouterBias, WeighsScoresOfZeroByZero) {
  float logits[] = {0, -200, -300}, weights[2] = {}, log_sum = 0;
  const float bias[] = {0, 3, 2};
  std::int32_t chosen[2] = {};
  choose_experts<Host, float>(Host(), {true, false, 0, 0}, Vector<const float, Host>(bias, 3),
                              Matrix<float, Host>(logits, 1, 3), Matrix<std::int32_t, Host>(chosen, 1, 2),
                              Matrix<float, Host>(weights, 1, 2), Vector<float, Host>(&log_sum, 1));
  EXPECT_EQ(chosen[0], 1);
  EXPECT_EQ(chosen[1], 2);
  EXPECT_EQ(weights[0], 0);
  EXPECT_EQ(weights[1], 0);
}

ModelConfig biased_mixture(ModelConfig::RouterScore score, bool normalised) {
  ModelConfig c = small_model(Family::qwen3_moe);
  c.router_score = score;
  c.norm_topk_prob = normalised;
  c.router_bias_rate = 0.05;
  return c;
}

// Returns the tensor numbers of the biases, by layer.
template <class Exec, class T>
std::vector<std::size_t> bias_tensors(const Arena<Exec, T>& arena) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < arena.size(); ++i)
    if (arena.specs()[i].name.ends_with(".mlp.gate.e_score_correction_bias")) found.push_back(i);
  return found;
}

// The biases are constants of the loss: gradients of all other tensors by differences, with choices that they change.
TEST(RouterBias, IsNotInTheGradient) {
  for (const auto score : {ModelConfig::RouterScore::softmax, ModelConfig::RouterScore::sigmoid})
    for (const bool normalised : {false, true}) {
      ModelRig<Host, double> rig(biased_mixture(score, normalised), 2, 7);
      rig.forward();
      std::vector<std::int32_t> before, after;
      for (const auto& a : rig.slot.layers) before.insert(before.end(), a.chosen.data(), a.chosen.data() + 28);
      for (const std::size_t i : bias_tensors(rig.arena))
        normals(stream_of(5, rig.arena.specs()[i].name), 0, 5, 0.3, static_cast<double*>(rig.arena.frozen(i)));
      rig.loss_and_backward(1.0 / 14);
      for (const auto& a : rig.slot.layers) after.insert(after.end(), a.chosen.data(), a.chosen.data() + 28);
      EXPECT_NE(before, after);
      for (std::size_t i = 0; i < rig.arena.size(); ++i) {
        const std::vector<double> at = rig.master(i), gradient = rig.gradient(i);
        std::vector<double> v(at.size());
        normals(stream_of(3, rig.arena.specs()[i].name), 0, v.size(), 1.0, v.data());
        const auto moved = [&](double h) {
          std::vector<double> values = at;
          for (std::size_t j = 0; j < v.size(); ++j) values[j] += h * v[j];
          rig.set_master(i, values);
          return rig.loss() / 14;
        };
        double analytic = 0, size = 0;
        for (std::size_t j = 0; j < v.size(); ++j) {
          analytic += v[j] * gradient[j];
          size += std::abs(v[j] * gradient[j]);
        }
        constexpr double h = 2e-5;  // truncation as in test_gradient.cpp
        EXPECT_NEAR((8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h), analytic,
                    2e-7 * (size + 1))
            << rig.arena.specs()[i].name;
        rig.set_master(i, at);
      }
    }
}

// A stage that trains, with its biases and with loads counted by hand.
struct BiasRig {
  static constexpr int micros = 2, length = 8, experts = 5;
  explicit BiasRig(bool recompute = false, std::int64_t until = 0)
      : run(mixture(until), {1, length, recompute, true, false, micros}, &optimizer) {
    run.stage.initialise(3);
  }
  static ModelConfig mixture(std::int64_t until) {
    ModelConfig c = biased_mixture(ModelConfig::RouterScore::softmax, true);
    c.router_bias_until = until;
    return c;
  }
  // Runs a micro-batch, whose tokens differ from those of others.
  void pass(int number, int micro) {
    std::int32_t tokens[length + 1];
    for (int i = 0; i <= length; ++i) tokens[i] = (7 * i + 5 * number + 3) % 23;
    run.load(tokens);
    if (micro == 0) run.stage.start_step();
    run.stage.watch(run.slot[0]);
    run.forward();
    run.stage.ignore(run.slot[0]);
    run.hooks.micro = micro;
    run.stage.backward(run.stage.weights(), run.slot[0], run.tokens.targets(), 0.1, micro, run.hooks);
  }
  std::vector<std::int64_t> loads() {
    std::vector<std::int64_t> all;
    for (std::size_t l = 0; l < 2; ++l) {
      const Vector<std::int64_t, Host> load = run.stage.expert_loads()->load(l);
      all.insert(all.end(), load.data(), load.data() + experts);
    }
    return all;
  }
  std::vector<float> biases() {
    std::vector<float> all;
    for (const std::size_t i : bias_tensors(run.stage.arena())) {
      const auto* const b = static_cast<const float*>(run.stage.arena().frozen(i));
      all.insert(all.end(), b, b + experts);
    }
    return all;
  }
  OptimizerOptions optimizer;
  StageRig<Host, float> run;
};

TEST(RouterBias, MovesAgainstTheLoadsOfAllMicroBatches) {
  BiasRig rig;
  std::vector<float> want(2 * BiasRig::experts);
  for (int t = 1; t <= 4; ++t) {
    std::vector<int> load(want.size());
    for (int micro = 0; micro < BiasRig::micros; ++micro) {
      rig.pass(BiasRig::micros * t + micro, micro);
      for (std::size_t l = 0; l < 2; ++l) {
        const auto& chosen = rig.run.slot[0].layers[l].chosen;
        for (std::size_t i = 0; i < chosen.size(); ++i)
          ++load[l * BiasRig::experts + static_cast<std::size_t>(chosen.data()[i])];
      }
    }
    rig.run.update(t, 1.0, 1.0);
    const double mean = 2.0 * BiasRig::micros * BiasRig::length / BiasRig::experts;  // 6.4
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += mean > load[i] ? 0.05f : -0.05f;
    ASSERT_EQ(rig.biases(), want) << t;
  }
  EXPECT_NE(std::abs(want[0]), 0.2f);  // not always in one direction
}

TEST(RouterBias, StaysWhereLoadsAreEqual) {
  BiasRig rig;
  ExpertLoads& loads = *rig.run.stage.expert_loads();
  loads.start_step();
  for (int e = 0; e < BiasRig::experts; ++e) loads.load(0)(e) = 3;
  for (int e = 0; e < BiasRig::experts; ++e) loads.load(1)(e) = e;  // the mean is 2
  loads.take();
  rig.run.stage.router_bias()->apply(Host(), 1, loads);
  EXPECT_EQ(rig.biases(), (std::vector<float>{0, 0, 0, 0, 0, 0.05f, 0.05f, 0, -0.05f, -0.05f}));
}

// Later updates go on counting loads.
TEST(RouterBias, StaysAfterTheLastUpdateThatMovesIt) {
  BiasRig frozen(false, 2), free;
  for (int t = 1; t <= 4; ++t) {
    const std::vector<float> before = frozen.biases();
    for (BiasRig* rig : {&frozen, &free}) {
      for (int micro = 0; micro < BiasRig::micros; ++micro) rig->pass(BiasRig::micros * t + micro, micro);
      rig->run.update(t, 1.0, 1.0);
    }
    EXPECT_EQ(frozen.biases() == free.biases(), t <= 2) << t;
    EXPECT_EQ(frozen.biases() == before, t > 2) << t;
    EXPECT_EQ(frozen.run.stage.expert_loads()->largest().over_mean > 1, true) << t;
  }
}

// Evaluations, updates that are not made and blocks that are computed again count for nothing.
TEST(RouterBias, CountsTheForwardPassesOfUpdatesOnce) {
  BiasRig plain, other(true);
  for (int t = 1; t <= 4; ++t) {
    for (BiasRig* rig : {&plain, &other}) {
      if (rig == &other)
        for (int micro = 0; micro < BiasRig::micros; ++micro) rig->pass(100 + micro, micro);  // withheld
      for (int micro = 0; micro < BiasRig::micros; ++micro) rig->pass(BiasRig::micros * t + micro, micro);
      if (rig == &other) rig->run.loss();
    }
    ASSERT_EQ(plain.loads(), other.loads()) << t;
    for (BiasRig* rig : {&plain, &other}) rig->run.update(t, 1.0, 1.0);
    ASSERT_EQ(plain.biases(), other.biases()) << t;
  }
}

}  // namespace
}  // namespace sestina
