#include "core/layout/tensor_spec.hpp"

#include <fmt/format.h>

namespace sestina {
namespace {

// Writes specs one after another with the same layer and block.
class Writer {
 public:
  explicit Writer(std::vector<TensorSpec>& specs) : specs_(specs) {}
  void place(int layer, int block) {
    layer_ = layer;
    block_ = block;
  }
  void matrix(std::string name, std::int64_t rows, std::int64_t cols, bool follows = false, Role role = Role::matrix) {
    specs_.push_back({std::move(name), rows, cols, role, layer_, block_, follows});
  }
  void heads(std::string name, std::int64_t rows, std::int64_t cols, std::int64_t heads, bool follows) {
    matrix(std::move(name), rows, cols, follows);
    specs_.back().heads = static_cast<int>(heads);
  }
  void vector(std::string name, std::int64_t rows, bool follows = false) {
    specs_.push_back({std::move(name), rows, 1, Role::vector, layer_, block_, follows});
  }
  void norm(const std::string& name, std::int64_t width, bool bias) {
    vector(name + ".weight", width);
    if (bias) vector(name + ".bias", width);
  }

 private:
  std::vector<TensorSpec>& specs_;
  int layer_ = -1, block_ = 0;
};

void attention_specs(Writer& out, const ModelConfig& c, const std::string& at) {
  const std::int64_t d = c.hidden_size, q = c.query_width(), kv = c.key_value_width();
  out.heads(at + "q_proj.weight", q, d, c.num_attention_heads, false);
  out.heads(at + "k_proj.weight", kv, d, c.num_key_value_heads, true);
  out.heads(at + "v_proj.weight", kv, d, c.num_key_value_heads, true);
  if (c.attention_bias) {
    out.vector(at + "q_proj.bias", q);
    out.vector(at + "k_proj.bias", kv, true);
    out.vector(at + "v_proj.bias", kv, true);
  }
  if (c.family == Family::qwen3) {  // one weight for all heads
    out.vector(at + "q_norm.weight", c.head_dim);
    out.vector(at + "k_norm.weight", c.head_dim);
  } else if (c.family == Family::olmo2) {  // over the whole projection
    out.vector(at + "q_norm.weight", q);
    out.vector(at + "k_norm.weight", kv);
  }
  out.matrix(at + "o_proj.weight", d, q);
  if (c.attention_bias) out.vector(at + "o_proj.bias", d);
}

void mlp_specs(Writer& out, const ModelConfig& c, const std::string& at) {
  const std::int64_t d = c.hidden_size, f = c.intermediate_size;
  const bool bias = c.family == Family::gpt && c.attention_bias;
  if (c.gated()) out.matrix(at + "gate_proj.weight", f, d);
  out.matrix(at + "up_proj.weight", f, d, c.gated());
  if (bias) out.vector(at + "up_proj.bias", f);
  out.matrix(at + "down_proj.weight", d, f);
  if (bias) out.vector(at + "down_proj.bias", d);
}

void layer_specs(Writer& out, const ModelConfig& c, int layer) {
  const std::string at = fmt::format("model.layers.{}.", layer);
  const bool post = c.family == Family::olmo2, bias = c.family == Family::gpt;
  if (!post) out.norm(at + "input_layernorm", c.hidden_size, bias);
  attention_specs(out, c, at + "self_attn.");
  out.norm(at + "post_attention_layernorm", c.hidden_size, bias);
  mlp_specs(out, c, at + "mlp.");
  if (post) out.norm(at + "post_feedforward_layernorm", c.hidden_size, bias);
}

ArenaLayout layout(const std::vector<TensorSpec>& specs, bool vectors) {
  ArenaLayout result;
  for (const TensorSpec& spec : specs) {
    if (spec.is_vector() && !vectors) {
      result.offset.push_back(0);
      continue;
    }
    if (!spec.follows) result.elements = aligned_elements(result.elements);
    result.offset.push_back(result.elements);
    result.elements += static_cast<std::size_t>(spec.elements());
  }
  return result;
}

}  // namespace

std::vector<TensorSpec> tensor_specs(const ModelConfig& c, LayerRange range) {
  const int layers = static_cast<int>(c.num_hidden_layers);
  SESTINA_REQUIRE(0 <= range.begin && range.begin <= range.end && range.end <= layers, "layers {} to {} of {}",
                  range.begin, range.end, layers);
  std::vector<TensorSpec> specs;
  Writer out(specs);
  const bool first = range.begin == 0, last = range.end == layers;
  if (first || (last && c.tie_word_embeddings)) {  // a last stage with a tied head holds its own copy of the table
    out.place(-1, 0);
    out.matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size, false, Role::embedding);
  }
  if (first && c.position == ModelConfig::Position::learned)
    out.matrix("model.embed_positions.weight", c.max_position_embeddings, c.hidden_size, false, Role::embedding);
  for (int layer = range.begin; layer < range.end; ++layer) {
    out.place(layer, 1 + layer);
    const std::size_t before = specs.size();
    layer_specs(out, c, layer);
    if (layer == range.begin) {  // all layers are alike
      const std::size_t each = specs.size() - before, ends = 4;
      specs.reserve(before + each * static_cast<std::size_t>(range.end - range.begin) + ends);
    }
  }
  if (last) {
    out.place(-1, 1 + layers);
    out.norm("model.norm", c.hidden_size, c.family == Family::gpt);
    if (!c.tie_word_embeddings) out.matrix("lm_head.weight", c.vocab_size, c.hidden_size, false, Role::head);
  }
  return specs;
}

std::vector<TensorSpec> tensor_specs(const ModelConfig& c) { return tensor_specs(c, all_layers(c)); }

ArenaLayout arena_layout(const std::vector<TensorSpec>& specs) { return layout(specs, true); }
ArenaLayout matrix_arena_layout(const std::vector<TensorSpec>& specs) { return layout(specs, false); }

}  // namespace sestina
