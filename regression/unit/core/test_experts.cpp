// Mixtures of experts against plain loops: choices, sorting, the layer itself, the losses of routers, experts without
// tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/model/experts.hpp"
#include "kernels/model/router.hpp"
#include "kernels/model/token_sort.hpp"
#include "regression/unit/core/model_rig.hpp"

namespace sestina {
namespace {

using Ints = Kokkos::View<std::int32_t**, Kokkos::LayoutRight, Kokkos::HostSpace>;
using Doubles = Kokkos::View<double**, Kokkos::LayoutRight, Kokkos::HostSpace>;

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

// The choices of one token from its probabilities: the largest first, of equal ones the lower number.
std::vector<int> best(const std::vector<double>& p, int k) {
  std::vector<int> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return p[static_cast<std::size_t>(a)] > p[static_cast<std::size_t>(b)]; });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

TEST(Router, ChoosesTheLargestAndOfEqualOnesTheLowerNumber) {
  constexpr int n = 3, experts = 5, k = 3;
  Doubles logits("logits", n, experts), weight("weight", n, k);
  Ints chosen("chosen", n, k);
  Kokkos::View<double*, Kokkos::HostSpace> log_sums("log_sums", n);
  const double rows[n][experts] = {{1, 3, 3, 0, 2}, {2, 2, 2, 2, 2}, {-1, 0, 5, 4, 5}};
  const int want[n][k] = {{1, 2, 4}, {0, 1, 2}, {2, 4, 3}};
  for (const bool normalised : {false, true}) {
    for (int i = 0; i < n; ++i) std::copy_n(rows[i], experts, &logits(i, 0));
    choose_experts<Host, double>(Host(), {normalised, false, 0, 0}, {}, logits, chosen, weight, log_sums);
    for (int i = 0; i < n; ++i) {
      double sum = 0, of_chosen = 0;
      for (const double x : rows[i]) sum += std::exp(x);
      for (const int e : want[i]) of_chosen += std::exp(rows[i][e]);
      EXPECT_NEAR(log_sums(i), std::log(sum), 1e-14);
      for (int j = 0; j < k; ++j) {
        EXPECT_EQ(chosen(i, j), want[i][j]) << i;
        EXPECT_NEAR(weight(i, j), std::exp(rows[i][want[i][j]]) / (normalised ? of_chosen : sum), 1e-15);
      }
    }
  }
}

// Two chunks and a part of one, and an expert that nobody chose.
TEST(TokenSort, RowsAreSortedByExpertThenByTokenOnEveryNumberOfThreads) {
  constexpr int n = 2 * token_chunk + 7, experts = 6, k = 2, idle = 4;
  Ints chosen("chosen", n, k), place("place", n, k);
  Kokkos::View<std::int32_t*, Kokkos::HostSpace> token("token", n * k);
  Kokkos::View<std::int64_t*, Kokkos::HostSpace> counts("counts", experts);
  std::vector<std::vector<int>> tokens_of_expert(experts);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < k; ++j) {
      const int other = (i * 7 + j * 3 + i / 5) % (experts - 1);
      chosen(i, j) = other == idle ? experts - 1 : other;
      tokens_of_expert[static_cast<std::size_t>(chosen(i, j))].push_back(i);
    }
  Workspace<Host> workspace(bytes_of<TokenSortScratch<Host>, Host>(std::int64_t{n}, std::int64_t{experts}));
  sort_tokens<Host>(Host(), chosen, place, token, counts, workspace);
  std::vector<int> want;
  for (std::size_t e = 0; e < experts; ++e) {
    EXPECT_EQ(counts(e), static_cast<std::int64_t>(tokens_of_expert[e].size()));
    want.insert(want.end(), tokens_of_expert[e].begin(), tokens_of_expert[e].end());
  }
  EXPECT_EQ(counts(idle), 0);
  EXPECT_EQ(std::vector<int>(token.data(), token.data() + n * k), want);
  std::vector<bool> taken(static_cast<std::size_t>(n * k));
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < k; ++j) {
      EXPECT_EQ(token(place(i, j)), i);
      EXPECT_FALSE(taken[static_cast<std::size_t>(place(i, j))]);
      taken[static_cast<std::size_t>(place(i, j))] = true;
    }
}

// The layer as its definition says: y_n = sum over the chosen e of w_ne down_e(silu(gate_e x_n) * up_e x_n).
struct PlainMixture {
  const ModelRig<Host, double>& rig;
  std::string at = "model.layers.0.mlp.";

  std::vector<double> times(const std::string& name, const std::vector<double>& x) const {
    const std::size_t i = rig.index(at + name + ".weight");
    const std::vector<double> w = rig.master(i);
    std::vector<double> y(static_cast<std::size_t>(rig.arena.specs()[i].rows));
    for (std::size_t r = 0; r < y.size(); ++r)
      for (std::size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
    return y;
  }
  std::vector<double> mlp(const std::string& of, const std::vector<double>& x) const {
    std::vector<double> gate = times(of + ".gate_proj", x);
    const std::vector<double> up = times(of + ".up_proj", x);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= sigmoid_of(gate[i]) * up[i];
    return times(of + ".down_proj", gate);
  }
  std::vector<double> probabilities(const std::vector<double>& x) const {
    std::vector<double> p = times("gate", x);
    double sum = 0;
    for (double& z : p) sum += z = std::exp(z);
    for (double& z : p) z /= sum;
    return p;
  }
  std::vector<double> output(const std::vector<double>& x) const {
    const ModelConfig& c = rig.config;
    const std::vector<double> p = probabilities(x);
    const std::vector<int> chosen = best(p, static_cast<int>(c.num_experts_per_tok));
    double sum = 0;
    for (const int e : chosen) sum += p[static_cast<std::size_t>(e)];
    std::vector<double> y(x.size());
    if (c.shared_expert_intermediate_size > 0) y = mlp("shared_expert", x);
    for (const int e : chosen) {
      const double w = p[static_cast<std::size_t>(e)] / (c.norm_topk_prob ? sum : 1);
      const std::vector<double> one = mlp(fmt::format("experts.{}", e), x);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += w * one[i];
    }
    return y;
  }
};

ModelConfig mixture(bool normalised, std::int64_t shared) {
  ModelConfig c = small_model(Family::qwen3_moe);
  c.norm_topk_prob = normalised;
  c.shared_expert_intermediate_size = shared;
  return c;
}

std::vector<double> row_of_matrix(const Matrix<double, Host>& m, std::size_t i) {
  return {m.data() + i * m.extent(1), m.data() + (i + 1) * m.extent(1)};
}

TEST(Experts, LayerIsTheSumOfTheChosenExperts) {
  for (const bool normalised : {false, true})
    for (const std::int64_t shared : {0, 8}) {
      ModelRig<Host, double> rig(mixture(normalised, shared), 2, 7);
      rig.forward();
      const PlainMixture plain{rig};
      const auto& a = rig.slot.layers[0];
      for (std::size_t n = 0; n < 14; ++n) {
        const std::vector<double> y = plain.output(row_of_matrix(a.h2, n)), x2 = row_of_matrix(a.x2, n),
                                  next = row_of_matrix(rig.slot.layers[1].x, n);
        for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(next[i] - x2[i], y[i], 1e-13) << n;
      }
    }
}

// An expert without tokens has a gradient of zero, whatever lay there, and keeps what it had where gradients are added.
TEST(Experts, WithoutTokensHaveNoGradient) {
  ModelConfig c = small_model(Family::qwen3_moe);
  c.num_experts = 40;  // more than the choices of 3 tokens
  ModelRig<Device, float> rig(c, 1, 3);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = 0; i < rig.arena.size(); ++i) Kokkos::deep_copy(rig.arena.gradient(i), nan);
  rig.loss_and_backward(1);
  int idle = 0;
  std::vector<std::vector<float>> first;
  for (std::size_t i = 0; i < rig.arena.size(); ++i) {
    first.push_back(rig.gradient(i));
    for (const float g : first.back()) ASSERT_TRUE(std::isfinite(g)) << rig.arena.specs()[i].name;
    if (rig.arena.specs()[i].expert >= 0 &&
        std::all_of(first.back().begin(), first.back().end(), [](float g) { return g == 0; }))
      ++idle;
  }
  EXPECT_GE(idle, 3 * 2 * (40 - 6));
  rig.loss_and_backward(0, true);  // adds nothing
  for (std::size_t i = 0; i < rig.arena.size(); ++i) EXPECT_EQ(rig.gradient(i), first[i]) << rig.arena.specs()[i].name;
}

// Returns what the header says: the losses of both routers, for a scale of 1 / N.
double router_losses(const ModelRig<Host, double>& rig) {
  const ModelConfig& c = rig.config;
  double sum = 0;
  for (const auto& a : rig.slot.layers) {
    const std::size_t n = a.router.extent(0), experts = a.router.extent(1);
    double balance = 0, size = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      double share = 0;
      for (std::size_t i = 0; i < n; ++i) share += a.router(i, e) / static_cast<double>(n);
      balance += share * static_cast<double>(a.counts(e)) / static_cast<double>(n);
    }
    for (std::size_t i = 0; i < n; ++i) size += a.log_sums(i) * a.log_sums(i) / static_cast<double>(n);
    sum += c.router_aux_loss_coef * static_cast<double>(experts) * balance + c.router_z_loss_coef * size;
  }
  return sum / static_cast<double>(c.num_hidden_layers);
}

TEST(Experts, LossesOfRoutersByDifferences) {
  ModelConfig c = mixture(true, 0);
  c.router_aux_loss_coef = 0.3;
  c.router_z_loss_coef = 0.2;
  ModelRig<Host, double> rig(c, 2, 7);
  const auto total = [&] { return rig.loss() / 14 + router_losses(rig); };
  rig.loss_and_backward(1.0 / 14);
  for (std::size_t i = 0; i < rig.arena.size(); ++i) {
    const std::vector<double> at = rig.master(i), gradient = rig.gradient(i);
    std::vector<double> v(at.size());
    normals(stream_of(3, rig.arena.specs()[i].name), 0, v.size(), 1.0, v.data());
    double analytic = 0, size = 0;
    for (std::size_t j = 0; j < v.size(); ++j) {
      analytic += v[j] * gradient[j];
      size += std::abs(v[j] * gradient[j]);
    }
    const auto moved = [&](double h) {
      std::vector<double> values = at;
      for (std::size_t j = 0; j < v.size(); ++j) values[j] += h * v[j];
      rig.set_master(i, values);
      return total();
    };
    constexpr double h = 2e-5;  // truncation as in test_gradient.cpp
    EXPECT_NEAR((8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h), analytic, 2e-7 * (size + 1))
        << rig.arena.specs()[i].name;
    rig.set_master(i, at);
  }
}

TEST(Experts, TwoPartsOfTheBackwardPassGiveTheSameBits) {
  for (const std::int64_t shared : {0, 8}) {
    ModelRig<Device, float> whole(mixture(true, shared)), parts(mixture(true, shared));
    whole.loss_and_backward(0.5);
    parts.slot.split_backward(parts.model.part(), 2, 7);
    parts.forward();
    parts.model.backward_input(parts.weights, parts.slot, parts.targets, 0.5, false, parts.gradients, parts.hooks);
    parts.model.backward_weight(parts.weights, parts.slot, false, parts.gradients, parts.hooks);
    for (std::size_t i = 0; i < whole.arena.size(); ++i)
      EXPECT_EQ(whole.gradient(i), parts.gradient(i)) << whole.arena.specs()[i].name;
  }
}

}  // namespace
}  // namespace sestina
