// Finite differences of the whole model, and of one block, in double, for every family and choice.
#include <gtest/gtest.h>

#include <cmath>

#include "core/model/block.hpp"
#include "regression/unit/core/model_rig.hpp"

namespace sestina {
namespace {

struct FormVariant {
  const char* name;
  ModelConfig config;
};

FormVariant variant(const char* name, Family family, auto change) {
  ModelConfig c = small_model(family);
  change(c);
  return {name, c};
}

std::vector<FormVariant> variants() {
  const auto plain = [](ModelConfig&) {};
  return {variant("llama", Family::llama, plain),
          variant("llama_tied_bias", Family::llama,
                  [](ModelConfig& c) { c.tie_word_embeddings = c.attention_bias = true; }),
          variant("llama_scaled_rope", Family::llama,
                  [](ModelConfig& c) {
                    c.rope_scaling = RopeScaling{4, 1, 2, 16};
                  }),
          variant("qwen3", Family::qwen3, plain),
          variant("qwen3_tied_bias", Family::qwen3,
                  [](ModelConfig& c) { c.tie_word_embeddings = c.attention_bias = true; }),
          variant("olmo2", Family::olmo2, plain),
          variant("qwen3_moe", Family::qwen3_moe, plain),
          variant("qwen3_moe_shared", Family::qwen3_moe,
                  [](ModelConfig& c) {
                    c.norm_topk_prob = false;
                    c.num_experts_per_tok = 3;
                    c.shared_expert_intermediate_size = 8;
                  }),
          variant("mixtral", Family::mixtral, plain),
          variant("gpt_learned", Family::gpt,
                  [](ModelConfig& c) {
                    c.position = ModelConfig::Position::learned;
                    c.attention_bias = c.tie_word_embeddings = true;
                  }),
          variant("gpt_rotary_tanh", Family::gpt, [](ModelConfig& c) { c.hidden_act = "gelu_new"; }),
          {"gpt_contest", contest_model()},
          variant("gpt_bare_norms", Family::gpt,
                  [](ModelConfig& c) {
                    c = contest_model();
                    c.norm_gain = false;
                    c.qk_norm_gain = true;
                    c.tie_word_embeddings = true;
                    c.softcapping_form = ModelConfig::SoftcapForm::tanh;
                  }),
          variant("gpt_layer_norm_embedding", Family::gpt, [](ModelConfig& c) {
            c.embedding_norm = c.head_bias = true;
            c.position = ModelConfig::Position::learned;
          })};
}

class Gradient : public testing::TestWithParam<FormVariant> {};

// Directional derivative of f by central differences of fourth order. With h = 4e-5 the truncation, h^4 times a fifth
// derivative of up to 1e10, is 3e-8 at most, the rounding of a loss near 50 about 1e-14 / h = 3e-10.
// A squared ReLU has a kink in its slope, which a smaller h makes rare to meet: its rounding is 1e-8 at most.
double step_size(const ModelConfig& c) { return c.hidden_act == "relu2" ? 1e-6 : 4e-5; }

template <class F>
double slope(const F& f, double h) {
  return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h);
}

TEST_P(Gradient, EveryTensorByDifferences) {
  ModelRig<Host, double> rig(GetParam().config, 2, 7);
  rig.disturb_vectors();
  rig.mask({0, 0, 0, 3, 3, 3, 3, 0, 0, 2, 2, 2, 5, 5});  // documents in both sequences
  const auto evaluate = [&] {
    rig.model.forward(rig.weights, rig.slot, rig.rows(), rig.first_key, rig.hooks);
    rig.model.loss_only(rig.weights, rig.slot, rig.targets);
    return rig.model.loss_sum(rig.slot);
  };
  rig.model.forward(rig.weights, rig.slot, rig.rows(), rig.first_key, rig.hooks);
  rig.model.loss_and_backward(rig.weights, rig.slot, rig.targets, 1.0, false, rig.gradients, rig.hooks);
  for (std::size_t i = 0; i < rig.arena.size(); ++i) {
    const std::string& name = rig.arena.specs()[i].name;
    const std::vector<double> at = rig.master(i), gradient = rig.gradient(i);
    for (const char* direction : {"first", "second"}) {
      std::vector<double> v(at.size());
      normals(stream_of(3, name + direction), 0, v.size(), 1.0, v.data());
      double analytic = 0, size = 0;
      for (std::size_t j = 0; j < v.size(); ++j) {
        analytic += v[j] * gradient[j];
        size += std::abs(v[j] * gradient[j]);
      }
      const double numeric = slope(
          [&](double h) {
            std::vector<double> moved = at;
            for (std::size_t j = 0; j < v.size(); ++j) moved[j] += h * v[j];
            rig.set_master(i, moved);
            return evaluate();
          },
          step_size(GetParam().config));
      EXPECT_NEAR(numeric, analytic, 2e-7 * (size + 1)) << name;
      // Softmax does not see a bias of k, unless k is turned by its position.
      const double least = name.ends_with("k_proj.bias") ? 0 : 1e-3;
      EXPECT_GT(size, least) << name << ": the loss hardly depends on it, the test says nothing";
    }
    rig.set_master(i, at);
  }
}

TEST_P(Gradient, StreamThroughOneBlock) {
  // f(x) = <c, block(x)>: block_backward turns c into the gradient of f.
  ModelRig<Host, double> rig(GetParam().config, 2, 5);
  rig.disturb_vectors();
  const std::size_t n = 10, d = static_cast<std::size_t>(rig.config.hidden_size);
  GroupOps<Host> group;
  Context<Host> context{rig.exec, rig.model.part(), 2, 5, rig.model.gemm(), rig.model.workspace(), group, {}, {}};
  auto& a = rig.slot.layers[0];
  Kokkos::View<double*, Kokkos::HostSpace> storage("branch", n * d);
  const Matrix<double, Host> branch(storage.data(), n, d), gradient = rig.slot.gradient;
  std::vector<double> x(n * d), c(n * d), v(n * d);
  normals(1, 0, x.size(), 1.0, x.data());
  normals(2, 0, c.size(), 1.0, c.data());
  normals(3, 0, v.size(), 1.0, v.data());
  const auto evaluate = [&](double h) {
    for (std::size_t i = 0; i < x.size(); ++i) a.x.data()[i] = x[i] + h * v[i];
    block_forward<Host, double>(context, rig.weights.layers[0], a, {}, {}, {}, branch);
    double f = 0;
    for (std::size_t i = 0; i < c.size(); ++i) f += c[i] * (a.x2.data()[i] + branch.data()[i]);
    return f;
  };
  const double numeric = slope(evaluate, step_size(GetParam().config));
  evaluate(0);
  std::copy(c.begin(), c.end(), gradient.data());
  block_backward<Host, double>(context, rig.weights.layers[0], a, {}, gradient, false, rig.gradients.layers[0]);
  double analytic = 0, size = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    analytic += v[i] * gradient.data()[i];
    size += std::abs(v[i] * gradient.data()[i]);
  }
  EXPECT_NEAR(numeric, analytic, 1e-8 * size);
}

INSTANTIATE_TEST_SUITE_P(Families, Gradient, testing::ValuesIn(variants()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sestina
