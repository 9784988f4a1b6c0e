#include "core/model/weights.hpp"

#include <unordered_map>

#include "core/layout/expert_names.hpp"
#include "core/layout/model_size.hpp"

namespace sestina {
namespace {

// Builds views from HF names; matrix(i) and vector(i) give the first element of tensor i, part(i) that of a part of a
// weight in another form.
template <class Exec, class M, class V, class MatrixOf, class VectorOf, class PartOf>
class Builder {
 public:
  using Views = ModelViews<Exec, M, V>;

  Builder(const ModelConfig& config, const std::vector<TensorSpec>& specs, MatrixOf matrix, VectorOf vector,
          PartOf part, bool apart)
      : c_(config), specs_(specs), matrix_(matrix), vector_(vector), part_(part), apart_(apart) {
    for (std::size_t i = 0; i < specs.size(); ++i) index_[specs[i].part == 0 ? specs[i].weight : specs[i].name] = i;
  }

  Views build(LayerRange range) const {
    Views views;
    views.embedding = matrix("model.embed_tokens.weight", c_.vocab_size, c_.hidden_size);
    views.position = matrix("model.embed_positions.weight", c_.max_position_embeddings, c_.hidden_size);
    if (c_.embedding_norm) views.embedding_norm = norm("model.embed_norm");
    for (int l = range.begin; l < range.end; ++l) views.layers.push_back(layer(fmt::format("model.layers.{}.", l)));
    views.norm = norm("model.norm");
    views.head = c_.tie_word_embeddings ? views.embedding : matrix("lm_head.weight", c_.vocab_size, c_.hidden_size);
    views.head_bias = vector("lm_head.bias", c_.vocab_size);
    return views;
  }

 private:
  typename Views::Layer layer(const std::string& at) const {
    const std::int64_t d = c_.hidden_size, f = mlp_width(c_), q = c_.query_width(), kv = c_.key_value_width();
    const bool post = c_.family == Family::olmo2;
    typename Views::Layer result;
    result.attention_norm = norm(at + (post ? "post_attention_layernorm" : "input_layernorm"));
    result.qkv = linear(at + "self_attn.q_proj", q + 2 * kv, d);
    result.q_norm = vector(at + "self_attn.q_norm.weight", c_.head_norms() ? c_.head_dim : q);
    result.k_norm = vector(at + "self_attn.k_norm.weight", c_.head_norms() ? c_.head_dim : kv);
    result.o = linear(at + "self_attn.o_proj", d, q);
    result.mlp_norm = norm(at + (post ? "post_feedforward_layernorm" : "post_attention_layernorm"));
    if (c_.has_experts()) add_experts(at, result);
    if (f == 0) return result;
    const std::string mlp = at + (c_.has_experts() ? expert_names(c_.family).shared : "mlp.");
    result.up = c_.gated() ? linear(mlp + "gate_proj", 2 * f, d) : linear(mlp + "up_proj", f, d);
    result.down = linear(mlp + "down_proj", d, f);
    return result;
  }
  void add_experts(const std::string& at, typename Views::Layer& layer) const {
    const ExpertNames names = expert_names(c_.family);
    const std::int64_t d = c_.hidden_size, f = c_.moe_intermediate_size;
    layer.router = linear(at + names.router, c_.num_experts, d);
    if (const auto bias = index_.find(at + names.router + names.choice_bias); bias != index_.end())
      if (V* const data = static_cast<V*>(part_(bias->second)))
        layer.choice_bias = Vector<V, Exec>(data, static_cast<std::size_t>(c_.num_experts));
    for (int e = 0; e < static_cast<int>(c_.num_experts); ++e)
      if (specs_[index_.at(at + names.gate_of(e) + ".weight")].rows > 0)  // else it is on another rank
        layer.experts.push_back({linear(at + names.gate_of(e), 2 * f, d), linear(at + names.down_of(e), d, f)});
  }
  typename Views::Linear linear(const std::string& at, std::int64_t rows, std::int64_t cols) const {
    typename Views::Linear linear;
    linear.bias = vector(at + ".bias", rows);
    const std::size_t first = index_.at(at + ".weight");
    if (specs_[first].part == 0) {
      linear.formed = formed(first, rows, cols);
      return linear;
    }
    require_rows(first, rows, cols);
    if (!apart_ && lie_together(first)) {
      linear.weight = Matrix<M, Exec>(matrix_(first), rows, cols);
      return linear;
    }
    for (std::size_t i = first; i == first || (i < specs_.size() && specs_[i].follows); ++i)
      linear.part[static_cast<std::size_t>(linear.parts++)] = Matrix<M, Exec>(matrix_(i), specs_[i].rows, cols);
    return linear;
  }
  // Returns weights in their form, one after the other until they have so many rows.
  std::vector<FormedWeight> formed(std::size_t i, std::int64_t rows, std::int64_t cols) const {
    std::vector<FormedWeight> weights;
    std::int64_t found = 0;
    while (found < rows) {
      SESTINA_REQUIRE(i < specs_.size() && specs_[i].part == 0 && specs_[i].cols == cols, "{} of {} rows in their form",
                      found, rows);
      FormedWeight weight{specs_[i].weight, specs_[i].rows, cols, {}, specs_[i].cut, specs_[i].layer};
      const std::size_t first = i;
      for (; i < specs_.size() && specs_[i].weight == weight.name; ++i) weight.part.at(i - first) = part_(i);
      found += weight.rows;
      weights.push_back(std::move(weight));
    }
    SESTINA_REQUIRE(found == rows, "{} rows in their form, {} in the model", found, rows);
    return weights;
  }
  // Returns whether the tensors that follow tensor i also follow it in memory.
  bool lie_together(std::size_t i) const {
    for (std::size_t j = i + 1; j < specs_.size() && specs_[j].follows; ++j)
      if (matrix_(j) != matrix_(j - 1) + specs_[j - 1].elements()) return false;
    return true;
  }
  typename Views::Norm norm(const std::string& at) const {
    return {vector(at + ".weight", c_.hidden_size), vector(at + ".bias", c_.hidden_size)};
  }
  // Returns a matrix, empty where this stage or family has no such tensor; rows may go on into the tensors that follow
  // it.
  Matrix<M, Exec> matrix(const std::string& name, std::int64_t rows, std::int64_t cols) const {
    const auto it = index_.find(name);
    if (it == index_.end()) return {};
    require_rows(it->second, rows, cols);
    return Matrix<M, Exec>(matrix_(it->second), rows, cols);
  }
  Vector<V, Exec> vector(const std::string& name, std::int64_t rows) const {
    const auto it = index_.find(name);
    if (it == index_.end()) return {};
    require_rows(it->second, rows, 1);
    return Vector<V, Exec>(vector_(it->second), rows);
  }
  void require_rows(std::size_t i, std::int64_t rows, std::int64_t cols) const {
    std::int64_t found = specs_[i].rows;
    for (std::size_t j = i + 1; j < specs_.size() && specs_[j].follows; ++j) found += specs_[j].rows;
    SESTINA_REQUIRE(found == rows && specs_[i].cols == cols, "{}: {} x {} in the arena, {} x {} in the model",
                    specs_[i].name, found, specs_[i].cols, rows, cols);
  }

  const ModelConfig& c_;
  const std::vector<TensorSpec>& specs_;
  MatrixOf matrix_;
  VectorOf vector_;
  PartOf part_;
  bool apart_;
  std::unordered_map<std::string, std::size_t> index_;
};

}  // namespace

template <class Exec, class T>
Weights<Exec, T> weights_of(const ModelConfig& config, LayerRange range, const Arena<Exec, T>& arena) {
  return weights_at<Exec, T>(
      config, range, arena.specs(), [&](std::size_t i) { return arena.matrix(i); },
      [&](std::size_t i) { return arena.vector(i); },
      [&](std::size_t i) { return arena.specs()[i].trainable ? arena.computed_with(i) : arena.frozen(i); });
}

template <class Exec, class T>
Weights<Exec, T> weights_at(const ModelConfig& config, LayerRange range, const std::vector<TensorSpec>& specs,
                            const std::function<const T*(std::size_t)>& matrix,
                            const std::function<const Acc<T>*(std::size_t)>& vector,
                            const std::function<void*(std::size_t)>& part) {
  return Builder<Exec, const T, const Acc<T>, const std::function<const T*(std::size_t)>&,
                 const std::function<const Acc<T>*(std::size_t)>&, const std::function<void*(std::size_t)>&>(
             config, specs, matrix, vector, part, false)
      .build(range);
}

template <class Exec, class T>
Gradients<Exec, T> gradients_of(const ModelConfig& config, LayerRange range, const Arena<Exec, T>& arena, bool apart,
                                Acc<T>* buffer) {
  const auto gradient = [&](std::size_t i) {
    return buffer == nullptr ? arena.gradient(i).data() : buffer + arena.layout().tensors[i].gradient_offset;
  };
  const auto part = [&](std::size_t i) -> void* { return arena.specs()[i].trainable ? gradient(i) : nullptr; };
  return Builder<Exec, Acc<T>, Acc<T>, decltype(gradient), decltype(gradient), decltype(part)>(
             config, arena.specs(), gradient, gradient, part, apart)
      .build(range);
}

#define SESTINA_WEIGHTS(Exec, T)                                                                                   \
  template Weights<Exec, T> weights_of<Exec, T>(const ModelConfig&, LayerRange, const Arena<Exec, T>&);            \
  template Weights<Exec, T> weights_at<Exec, T>(                                                                   \
      const ModelConfig&, LayerRange, const std::vector<TensorSpec>&, const std::function<const T*(std::size_t)>&, \
      const std::function<const Acc<T>*(std::size_t)>&, const std::function<void*(std::size_t)>&);                 \
  template Gradients<Exec, T> gradients_of<Exec, T>(const ModelConfig&, LayerRange, const Arena<Exec, T>&, bool,   \
                                                    Acc<T>*);
SESTINA_INSTANTIATE(SESTINA_WEIGHTS)

}  // namespace sestina
