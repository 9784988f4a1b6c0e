#include "core/layout/tensor_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/deck/options.hpp"
#include "core/layout/expert_names.hpp"
#include "core/layout/model_size.hpp"
#include "core/layout/weight_form.hpp"

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
  // Return the next spec, of which the caller fills in more.
  TensorSpec& matrix(std::string name, std::int64_t rows, std::int64_t cols, TensorCut cut, bool follows = false,
                     Role role = Role::matrix) {
    specs_.push_back({std::move(name), rows, cols, role, layer_, block_, follows});
    specs_.back().cut = cut;
    return specs_.back();
  }
  TensorSpec& vector(std::string name, std::int64_t rows, Initial initial, TensorCut cut = TensorCut::none,
                     bool follows = false) {
    TensorSpec& spec = matrix(std::move(name), rows, 1, cut, follows, Role::vector);
    spec.initial = initial;
    return spec;
  }
  TensorSpec& norm_vector(std::string name, std::int64_t rows, Initial initial, TensorCut cut = TensorCut::none) {
    TensorSpec& spec = vector(std::move(name), rows, initial, cut);
    spec.of_norm = true;
    return spec;
  }
  void norm(const std::string& name, const ModelConfig& c) {  // a norm of the residual stream
    const std::int64_t width = c.hidden_size;
    if (c.norm_gain) norm_vector(name + ".weight", width, Initial::ones).gradient_of = GradientOf::stream_rows;
    if (c.layer_norms()) norm_vector(name + ".bias", width, Initial::zeros).gradient_of = GradientOf::stream_rows;
  }

 private:
  std::vector<TensorSpec>& specs_;
  int layer_ = -1, block_ = 0;
};

// Gives a weight the first range that [model.init] has for its role; 0: zeros.
void set_range(TensorSpec& spec, const ModelConfig& c, InitRole role) {
  spec.ends_branch = role == InitRole::o || role == InitRole::down;
  const std::optional<double>& range = c.init[static_cast<std::size_t>(role)];
  if (range && *range == 0) spec.initial = Initial::zeros;
  if (range) spec.initial_range = *range;
}

// A projection of q, k or v: its weight or its bias.
struct HeadProjection {
  const char* name;
  std::int64_t rows, heads;
  TensorCut cut;
  GradientOf gradient_of;
  Projection projection;
  bool follows;  // q, k, v are adjacent
  InitRole role;
};

std::array<HeadProjection, 3> head_projections(const ModelConfig& c) {
  const std::int64_t q = c.query_width(), kv = c.key_value_width();
  constexpr auto shared = GradientOf::shared_heads;
  return {
      {{"q_proj", q, c.num_attention_heads, TensorCut::rows, GradientOf::own, Projection::query, false, InitRole::q},
       {"k_proj", kv, c.num_key_value_heads, TensorCut::key_value, shared, Projection::key, true, InitRole::k},
       {"v_proj", kv, c.num_key_value_heads, TensorCut::key_value, shared, Projection::none, true, InitRole::v}}};
}

void query_norm_specs(Writer& out, const ModelConfig& c, const std::string& at) {
  if (c.head_norms()) {  // one weight for all heads
    if (c.family == Family::gpt && !c.qk_norm_gain) return;
    for (const char* name : {"q_norm.weight", "k_norm.weight"})
      out.norm_vector(at + name, c.head_dim, Initial::ones).gradient_of = GradientOf::heads;
  } else if (c.family == Family::olmo2) {  // one over the whole projection: its weights are split as the heads
    out.norm_vector(at + "q_norm.weight", c.query_width(), Initial::ones, TensorCut::rows);
    out.norm_vector(at + "k_norm.weight", c.key_value_width(), Initial::ones, TensorCut::key_value).gradient_of =
        GradientOf::shared_heads;
  }
}

void attention_specs(Writer& out, const ModelConfig& c, const std::string& at) {
  for (const HeadProjection& of : head_projections(c)) {
    TensorSpec& spec = out.matrix(at + of.name + ".weight", of.rows, c.hidden_size, of.cut, of.follows);
    spec.heads = static_cast<int>(of.heads);
    spec.gradient_of = of.gradient_of;
    spec.projection = of.projection;
    set_range(spec, c, of.role);
  }
  if (c.attention_bias)
    for (const HeadProjection& of : head_projections(c)) {
      TensorSpec& spec = out.vector(at + of.name + ".bias", of.rows, Initial::zeros, of.cut, of.follows);
      spec.gradient_of = of.gradient_of;
      spec.projection = of.projection;
    }
  query_norm_specs(out, c, at);
  set_range(out.matrix(at + "o_proj.weight", c.hidden_size, c.query_width(), TensorCut::cols), c, InitRole::o);
  // All ranks hold this bias, and sum its gradient over the gathered rows.
  if (c.attention_bias) out.vector(at + "o_proj.bias", c.hidden_size, Initial::zeros).ends_branch = true;
}

void mlp_specs(Writer& out, const ModelConfig& c, const std::string& at) {
  const std::int64_t d = c.hidden_size, f = c.intermediate_size;
  const bool bias = c.family == Family::gpt && c.attention_bias;
  if (c.gated()) set_range(out.matrix(at + "gate_proj.weight", f, d, TensorCut::rows), c, InitRole::up);
  set_range(out.matrix(at + "up_proj.weight", f, d, TensorCut::rows, c.gated()), c, InitRole::up);
  if (bias) out.vector(at + "up_proj.bias", f, Initial::zeros, TensorCut::rows);
  set_range(out.matrix(at + "down_proj.weight", d, f, TensorCut::cols), c, InitRole::down);
  if (bias) out.vector(at + "down_proj.bias", d, Initial::zeros).ends_branch = true;
}

// The router is a matrix like others for the optimizer, as Megatron gives Muon all but embedding and head; an
// [[optimizer.group]] gives it to the elementwise rule.
void expert_specs(Writer& out, const ModelConfig& c, const std::string& at) {
  const std::int64_t d = c.hidden_size, shared = c.shared_expert_intermediate_size;
  const ExpertNames names = expert_names(c.family);
  int expert = -1;  // every token's
  const auto mlp = [&](const std::string& gate, const std::string& up, const std::string& down, std::int64_t f) {
    const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t cols, TensorCut cut, bool follows,
                         InitRole role) {
      TensorSpec& spec = out.matrix(at + name + ".weight", rows, cols, cut, follows);
      spec.expert = expert;
      set_range(spec, c, role);
    };
    add(gate, f, d, TensorCut::rows, false, InitRole::up);
    add(up, f, d, TensorCut::rows, true, InitRole::up);
    add(down, d, f, TensorCut::cols, false, InitRole::down);
  };
  out.matrix(at + names.router + ".weight", c.num_experts, d, TensorCut::none);
  if (c.router_bias_rate > 0) {  // moved by loads, not by gradients
    TensorSpec& bias = out.vector(at + names.router + names.choice_bias, c.num_experts, Initial::zeros);
    bias.trainable = false;
    bias.stored = Stored::sum;
    bias.may_be_absent = true;  // from a checkpoint without them biases start at zero
  }
  const std::string all = names.shared;
  if (shared > 0) mlp(all + "gate_proj", all + "up_proj", all + "down_proj", shared);
  for (expert = 0; expert < static_cast<int>(c.num_experts); ++expert)
    mlp(names.gate_of(expert), names.up_of(expert), names.down_of(expert), c.moe_intermediate_size);
}

void layer_specs(Writer& out, const ModelConfig& c, int layer) {
  const std::string at = fmt::format("model.layers.{}.", layer);
  const bool post = c.family == Family::olmo2;
  if (!post) out.norm(at + "input_layernorm", c);
  attention_specs(out, c, at + "self_attn.");
  out.norm(at + "post_attention_layernorm", c);
  if (c.has_experts())
    expert_specs(out, c, at);
  else
    mlp_specs(out, c, at + "mlp.");
  if (post) out.norm(at + "post_feedforward_layernorm", c);
}

template <class Has>
ArenaLayout layout(const std::vector<TensorSpec>& specs, const Has& has) {
  ArenaLayout result;
  for (const TensorSpec& spec : specs) {
    if (!has(spec)) {
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
  if (first) {  // also has the table of a tied head, which is sent to a last stage
    out.place(-1, 0);
    set_range(
        out.matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size, TensorCut::rows, false, Role::embedding),
        c, InitRole::embed);
  }
  if (first && c.position == ModelConfig::Position::learned)
    out.matrix("model.embed_positions.weight", c.max_position_embeddings, c.hidden_size, TensorCut::none, false,
               Role::embedding);
  if (first && c.embedding_norm) {
    out.norm("model.embed_norm", c);
    for (TensorSpec& spec : specs) spec.of_norm = false;  // their gradients come with the table's
  }
  for (int layer = range.begin; layer < range.end; ++layer) {
    out.place(layer, 1 + layer);
    const std::size_t before = specs.size();
    if (c.linear.is_dense()) {
      layer_specs(out, c, layer);
    } else {
      std::vector<TensorSpec> dense;
      Writer one(dense);
      one.place(layer, 1 + layer);
      layer_specs(one, c, layer);
      for (TensorSpec& spec : formed_specs(c.linear, dense)) specs.push_back(std::move(spec));
    }
    if (layer == range.begin) {  // all layers are equal
      const std::size_t each = specs.size() - before, ends = 4;
      specs.reserve(before + each * static_cast<std::size_t>(range.end - range.begin) + ends);
    }
  }
  if (last) {
    out.place(-1, 1 + layers);
    out.norm("model.norm", c);
    // The bias comes first: with it, too, the head ends the arena.
    if (c.head_bias) out.vector("lm_head.bias", c.vocab_size, Initial::zeros, TensorCut::rows);
    if (!c.tie_word_embeddings)
      set_range(out.matrix("lm_head.weight", c.vocab_size, c.hidden_size, TensorCut::rows, false, Role::head), c,
                InitRole::head);
  }
  return specs;
}

std::vector<TensorSpec> tensor_specs(const ModelConfig& c) { return tensor_specs(c, all_layers(c)); }

DType kept_as(const TensorSpec& spec, std::size_t compute, std::size_t accumulate) {
  const auto real = [](std::size_t width) {
    return width == size_of(DType::f64) ? DType::f64 : width == size_of(DType::f32) ? DType::f32 : DType::bf16;
  };
  if (spec.has_master()) return real(accumulate);
  switch (spec.stored) {
    case Stored::compute:
      return real(compute);
    case Stored::sum:
      return real(accumulate);
    case Stored::index:
      return DType::i32;
    case Stored::code:
    case Stored::half_code:
    case Stored::coded_rows:
      return DType::u8;
  }
  return DType::u8;
}

std::size_t bytes_apart(const TensorSpec& spec, std::size_t compute, std::size_t accumulate) {
  return static_cast<std::size_t>(spec.rows * spec.kept_cols()) * size_of(kept_as(spec, compute, accumulate));
}

void add_frozen(ArenaLayout& places, const TensorSpec& spec, std::size_t compute, std::size_t accumulate) {
  constexpr std::size_t alignment = 256;
  places.offset.push_back(spec.has_master() ? 0 : places.elements);
  if (spec.has_master()) return;
  const std::size_t bytes = bytes_apart(spec, compute, accumulate);
  places.elements += (bytes + alignment - 1) / alignment * alignment;
}

ArenaLayout frozen_layout(const std::vector<TensorSpec>& specs, std::size_t compute, std::size_t accumulate) {
  ArenaLayout places;
  for (const TensorSpec& spec : specs) add_frozen(places, spec, compute, accumulate);
  return places;
}

ArenaLayout arena_layout(const std::vector<TensorSpec>& specs) {
  return layout(specs, [](const TensorSpec& spec) { return spec.trainable; });
}
ArenaLayout master_layout(const std::vector<TensorSpec>& specs) {
  return layout(specs, [](const TensorSpec& spec) { return spec.has_master(); });
}
ArenaLayout matrix_arena_layout(const std::vector<TensorSpec>& specs) {
  return layout(specs, [](const TensorSpec& spec) { return spec.has_master() && !spec.is_vector(); });
}

std::int64_t parameter_count(const ModelConfig& config) {
  return sum_over_tensors(dense_model(config), [](const TensorSpec& spec) { return spec.elements(); });
}

std::int64_t trainable_count(const ModelConfig& config) {
  return sum_over_tensors(config, [](const TensorSpec& spec) { return spec.trainable ? spec.elements() : 0; });
}

double flops_per_token(const ModelConfig& c, std::int64_t sequence) {
  const std::int64_t in_products =
      (c.tie_word_embeddings ? c.vocab_size * c.hidden_size : 0) +
      sum_over_tensors(dense_model(c),
                       [](const TensorSpec& spec) {
                         return spec.role == Role::matrix || spec.role == Role::head ? spec.elements() : 0;
                       }) -
      (parameter_count(c) - active_count(c));
  return 6.0 * static_cast<double>(in_products) +
         12.0 * static_cast<double>(c.num_hidden_layers * c.query_width() * sequence);
}

namespace {

struct ShardSides {
  std::int64_t out = 0, in = 0;
};

// Returns the sides of a weight on one of tp ranks; with fewer key and value heads than ranks, several hold the same
// one.
ShardSides sides_on_rank(const TensorSpec& weight, const ModelConfig& model, std::int64_t tp) {
  switch (weight.cut) {
    case TensorCut::none:
      break;
    case TensorCut::rows:
      return {weight.rows / tp, weight.cols};
    case TensorCut::key_value:
      return {weight.rows / std::min(tp, model.num_key_value_heads), weight.cols};
    case TensorCut::cols:
      return {weight.rows, weight.cols / tp};
  }
  return {weight.rows, weight.cols};
}

}  // namespace

double flops_per_token(const Options& options) {
  const ModelConfig& model = options.model;
  const std::int64_t sequence = options.data.sequence_length;
  const double dense = flops_per_token(model, sequence);
  const WeightForm* form = find_weight_form(model.linear);
  if (form == nullptr) return dense;
  const int dp = options.parallel.dp, tp = options.parallel.tp;
  const auto pass_tokens = static_cast<double>(shared_micro_batch(options.train, dp) * sequence),
             update_tokens = static_cast<double>(options.train.global_batch * sequence);
  const bool in_turn = dp > 1 && options.parallel.shard != ParallelOptions::Shard::state,
             many = update_tokens > dp * pass_tokens;
  const double sum_tokens =
      gathers_sums(options.run.deterministic, many ? 2 : 1, in_turn) ? update_tokens / dp : pass_tokens;
  const auto every = static_cast<double>(form->merge_every(model.linear));
  const double merges = every > 0 ? dp / (every * update_tokens) : 0;  // per token
  return dense + sum_over_tensors(model, [&](const TensorSpec& spec) {
           if (spec.part != 0) return 0.0;  // the first part has the shape of the weight
           const ShardSides sides = sides_on_rank(spec, model, tp);
           const FormWork work = form->work(model.linear, sides.out, sides.in);
           return tp * (work.per_row + work.per_pass / pass_tokens + work.per_sum / sum_tokens +
                        work.per_merge * merges) -
                  6 * static_cast<double>(spec.elements());
         });
}

}  // namespace sestina
