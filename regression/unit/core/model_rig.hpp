// A whole model with its tensors, for tests: weights and gradients as host numbers by tensor, tokens as vectors.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "core/deck/model_experts.hpp"
#include "core/model/initialise.hpp"
#include "core/model/transformer.hpp"
#include "kernels/base/random.hpp"

namespace sestina {

// Small sizes of each family that differ from one another wherever they may.
inline ModelConfig small_model(Family family) {
  ModelConfig c = family_defaults(family);
  c.hidden_size = 20;
  c.intermediate_size = 14;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = family == Family::gpt ? 4 : 2;
  c.head_dim = family == Family::qwen3 ? 8 : 6;
  if (is_mixture(family)) {
    c.num_experts = 5;
    c.num_experts_per_tok = 2;
    c.moe_intermediate_size = family == Family::mixtral ? c.intermediate_size : 9;
  }
  c.vocab_size = 23;
  c.max_position_embeddings = 32;
  c.initializer_range = 0.3;  // large enough that no nonlinearity stays in its linear part
  return c;
}

// A gpt with every switch away from GPT-2: the baseline of modded-nanogpt's contest in steps.
inline ModelConfig contest_model() {
  ModelConfig c = small_model(Family::gpt);
  c.head_dim = 8;
  c.rope_theta = 1024;
  c.attention_bias = c.head_bias = c.embedding_norm = c.qk_norm = true;
  c.qk_norm_gain = false;
  c.norm = ModelConfig::Norm::rmsnorm;
  c.hidden_act = "relu2";
  c.partial_rotary_factor = 0.5;
  c.attention_multiplier = 0.12;
  c.final_logit_softcapping = 3;  // small enough to count
  c.softcapping_form = ModelConfig::SoftcapForm::root;
  return c;
}

template <class Exec, class T>
struct ModelRig {
  using A = Acc<T>;
  using Tokens = Kokkos::View<std::int32_t*, typename Exec::memory_space>;

  Exec exec;
  ModelConfig config;
  int batch, sequence;
  LayerRange range;
  Transformer<Exec, T> model;
  Arena<Exec, T> arena;
  Activations<Exec, T> slot;
  Weights<Exec, T> weights;
  Gradients<Exec, T> gradients;
  Tokens tokens, order, targets, first_key;
  BlockHooks hooks;

  ModelRig(const ModelConfig& c, int B, int sequence_length, LayerRange layers, bool recompute = false)
      : ModelRig(model_part(c, 1, 0), B, sequence_length, layers, recompute) {}
  ModelRig(const ModelPart& part, int B, int sequence_length, LayerRange layers, bool recompute)
      : config(part.config),
        batch(B),
        sequence(sequence_length),
        range(layers),
        model(exec, part, layers, B, sequence_length, recompute, false),
        arena(model.specs(), true),
        slot(model.make_slot()),
        weights(weights_of<Exec, T>(config, layers, arena)),
        gradients(gradients_of<Exec, T>(config, layers, arena)),
        tokens("tokens", static_cast<std::size_t>(B * sequence_length)),
        order("order", tokens.size()),
        targets("targets", tokens.size()) {
    initialise<Exec, T>(exec, arena, config, 7);
    std::vector<std::int32_t> in(tokens.size()), out(tokens.size());
    for (std::size_t i = 0; i < in.size(); ++i) {
      in[i] = static_cast<std::int32_t>(permute(11, i % 1000, 1000) % static_cast<std::uint64_t>(config.vocab_size));
      out[i] = static_cast<std::int32_t>(permute(12, i % 1000, 1000) % static_cast<std::uint64_t>(config.vocab_size));
    }
    load(in, out);
  }
  explicit ModelRig(const ModelConfig& c, int B = 2, int sequence_length = 7, bool recompute = false)
      : ModelRig(c, B, sequence_length, all_layers(c), recompute) {}

  static void upload(const std::vector<std::int32_t>& from, Tokens to) {
    Kokkos::deep_copy(to, Kokkos::View<const std::int32_t*, Kokkos::HostSpace>(from.data(), from.size()));
  }
  void load(const std::vector<std::int32_t>& in, const std::vector<std::int32_t>& out) {
    std::vector<std::int32_t> sorted(in.size()), scratch(in.size());
    sort_rows(in, sorted, scratch);
    upload(in, tokens);
    upload(sorted, order);
    upload(out, targets);
  }
  // Rows without a target.
  void ignore(std::initializer_list<int> rows) {
    std::vector<std::int32_t> out = download(Vector<const std::int32_t, Exec>(targets));
    for (const int row : rows) out[static_cast<std::size_t>(row)] = -1;
    upload(out, targets);
  }
  void mask(const std::vector<std::int32_t>& keys) {
    first_key = Tokens("first_key", keys.size());
    upload(keys, first_key);
  }

  std::vector<A> master(std::size_t i) const { return download(Vector<const A, Exec>(arena.master(i))); }
  std::vector<A> gradient(std::size_t i) const { return download(Vector<const A, Exec>(arena.gradient(i))); }
  template <class Element>
  static std::vector<Element> download(Vector<const Element, Exec> from) {
    std::vector<Element> to(from.size());
    Kokkos::deep_copy(Vector<Element, Host>(to.data(), to.size()), from);
    return to;
  }
  // Call arena.round_weights afterwards.
  void set_master(std::size_t i, const std::vector<A>& values) {
    Kokkos::deep_copy(arena.master(i), Vector<const A, Host>(values.data(), values.size()));
  }
  std::size_t index(const std::string& name) const {
    for (std::size_t i = 0; i < arena.size(); ++i)
      if (arena.specs()[i].name == name) return i;
    fail(ExitCode::internal, "no tensor {}", name);
  }
  // Gives norm weights and biases values of their own, so that nothing hides behind ones and zeros.
  void disturb_vectors() {
    for (std::size_t i = 0; i < arena.size(); ++i) {
      if (!arena.specs()[i].is_vector()) continue;
      auto values = master(i);
      for (std::size_t j = 0; j < values.size(); ++j)
        values[j] += static_cast<A>(0.3 * normal(stream_of(5, arena.specs()[i].name), j));
      set_master(i, values);
    }
  }

  TokenRows<Exec> rows() const { return {tokens, order}; }
  void forward() { model.forward(weights, slot, rows(), first_key, hooks); }
  // Sum of token losses.
  double loss() {
    forward();
    model.loss_only(weights, slot, targets);
    return model.loss_sum(slot);
  }
  double loss_and_backward(double scale, bool accumulate = false) {
    forward();
    model.loss_and_backward(weights, slot, targets, scale, accumulate, gradients, hooks);
    return model.loss_sum(slot);
  }
  std::vector<double> logits(int begin, int rows) {
    const auto width = static_cast<std::size_t>(config.vocab_size);
    Kokkos::View<T*, typename Exec::memory_space> buffer("logits", static_cast<std::size_t>(rows) * width);
    model.logits(weights, slot, begin, Matrix<T, Exec>(buffer.data(), static_cast<std::size_t>(rows), width));
    exec.fence("logits");
    const std::vector<T> values = download(Vector<const T, Exec>(buffer.data(), buffer.size()));
    return std::vector<double>(values.begin(), values.end());
  }
};

}  // namespace sestina
