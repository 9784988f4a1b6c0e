#include "core/layout/rank_layout.hpp"

#include <algorithm>
#include <cmath>

#include "core/deck/options.hpp"

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
  part.config.intermediate_size = first_of_mlp(whole, tp, tp_rank + 1) - first_of_mlp(whole, tp, tp_rank);
  part.config.moe_intermediate_size = whole.moe_intermediate_size / tp;
  part.config.shared_expert_intermediate_size = whole.shared_expert_intermediate_size / tp;
  part.config.linear.shards = std::max<std::int64_t>(1, whole.linear.shards / tp);
  part.config.linear.first_shard = tp_rank * part.config.linear.shards;
  return part;
}

std::int64_t ModelPart::expert_rows(std::int64_t n) const {
  const std::int64_t mean = n * config.num_experts_per_tok;
  const std::int64_t most = ep == 1 ? mean : ep * n * std::min(config.num_experts_per_tok, own_experts());
  if (expert_room == 0) return most;
  return std::min(most, static_cast<std::int64_t>(std::ceil(expert_room * static_cast<double>(mean))));
}

bool gradient_is_partial(const TensorSpec& spec, const ModelConfig& whole, int tp, bool sequence_parallel) {
  if (tp == 1) return false;
  switch (spec.gradient_of) {
    case GradientOf::own:
      return false;
    case GradientOf::shared_heads:
      return whole.num_key_value_heads < tp;
    case GradientOf::heads:
      return true;
    case GradientOf::stream_rows:
      return sequence_parallel;
  }
  return false;
}

namespace {

// size: elements of a tensor.
template <class Size>
ArenaLayout places_in_order(const RankLayout& layout, const Size& size) {
  ArenaLayout places;
  for (const TensorHolding& tensor : layout.tensors) {
    if (!tensor.local.follows) places.elements = aligned_elements(places.elements);
    places.offset.push_back(places.elements);
    places.elements += size(tensor);
  }
  return places;
}

std::size_t elements_of_shard(const TensorHolding& tensor) { return static_cast<std::size_t>(tensor.local.elements()); }

// Returns the elements of a matrix that stay in the type of weights.
std::size_t matrix_elements(const RankLayout& layout, const TensorHolding& tensor, bool shared) {
  if (tensor.local.is_vector() || !tensor.local.has_master()) return 0;
  if (layout.weights_in_turn) return tensor.homed ? tensor.owned_elements() : 0;
  return shared ? 0 : elements_of_shard(tensor);
}

}  // namespace

ArenaPlaces arena_places(const RankLayout& layout, std::size_t compute, std::size_t accumulate) {
  const bool shared = compute == accumulate;
  ArenaPlaces places;
  places.values = places_in_order(layout, [&](const TensorHolding& tensor) {
    return keeps_values_whole(layout, tensor, shared) ? elements_of_shard(tensor) : master_elements(tensor);
  });
  places.matrices =
      places_in_order(layout, [&](const TensorHolding& tensor) { return matrix_elements(layout, tensor, shared); });
  for (const TensorHolding& tensor : layout.tensors) add_frozen(places.frozen, tensor.local, compute, accumulate);
  return places;
}

RankLayout lone_layout(const std::vector<TensorSpec>& specs) {
  const ArenaLayout places = arena_layout(specs);
  RankLayout layout;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    TensorHolding tensor;
    tensor.whole = tensor.local = specs[i];
    tensor.owned_end = specs[i].trainable ? specs[i].rows : 0;
    tensor.gradient_offset = places.offset[i];
    layout.tensors.push_back(tensor);
  }
  layout.gradient_elements = places.elements;
  return layout;
}

}  // namespace sestina
