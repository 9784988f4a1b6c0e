#include "core/layout/model_part.hpp"

#include <algorithm>
#include <string_view>

namespace sestina {

ModelPart model_part(const ModelConfig& whole, int tp, int tp_rank, bool sequence_parallel) {
  SESTINA_REQUIRE(tp > 0 && 0 <= tp_rank && tp_rank < tp, "rank {} of {}", tp_rank, tp);
  ModelPart part{.config = whole,
                 .tp = tp,
                 .tp_rank = tp_rank,
                 .vocabulary = whole.vocab_size,
                 .key_value_heads = whole.num_key_value_heads,
                 .sequence_parallel = sequence_parallel};
  const auto first_word = [&](std::int64_t rank) { return (whole.vocab_size * rank + tp - 1) / tp; };
  part.vocabulary_begin = first_word(tp_rank);
  part.config.vocab_size = first_word(tp_rank + 1) - part.vocabulary_begin;
  part.config.num_attention_heads = whole.num_attention_heads / tp;
  part.config.num_key_value_heads = std::max<std::int64_t>(1, whole.num_key_value_heads / tp);
  part.config.intermediate_size = whole.intermediate_size / tp;
  return part;
}

bool gradient_is_partial(const TensorSpec& spec, const ModelConfig& whole, int tp, bool sequence_parallel) {
  if (tp == 1) return false;
  const auto has = [&](std::string_view part) { return spec.name.find(part) != std::string::npos; };
  const bool shared_heads = whole.num_key_value_heads < tp;
  // Each rank attends with queries of its own to a key and value head that several ranks hold.
  if (has("k_proj") || has("v_proj")) return shared_heads;
  if (has("q_norm") || has("k_norm")) {
    // qwen3: one weight for all heads, of which a rank has some. olmo2: weights of the own columns.
    return whole.family == Family::qwen3 || (has("k_norm") && shared_heads);
  }
  // Norms of the residual stream see the rank's own rows; without sequence parallelism all rows.
  if (has("layernorm") || has("model.norm.")) return sequence_parallel;
  // The rest is whole: matrices, tables and biases cut by rank belong to one rank alone; biases of o_proj and down_proj
  // and learned positions are held by all, which sum over the gathered rows.
  return false;
}

}  // namespace sestina
