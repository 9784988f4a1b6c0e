#include "parallel/plan/tensor_shard.hpp"

#include <string_view>

namespace sestina {
namespace {

bool has(const TensorSpec& spec, std::string_view part) { return spec.name.find(part) != std::string::npos; }

// Even parts; the first ones are larger by one where they do not divide.
TensorShard even(TensorShard::Cut cut, std::int64_t size, int parts, int part) {
  const auto edge = [&](std::int64_t p) { return (size * p + parts - 1) / parts; };
  return {cut, edge(part), edge(part + 1)};
}

}  // namespace

TensorShard tensor_shard(const TensorSpec& spec, const ModelConfig& model, int tp, int tp_rank) {
  using Cut = TensorShard::Cut;
  const TensorShard whole{Cut::none, 0, spec.rows};
  if (tp == 1) return whole;
  if (spec.role == Role::embedding || spec.role == Role::head)
    return has(spec, "embed_positions") ? whole : even(Cut::rows, spec.rows, tp, tp_rank);
  // olmo2 normalises q and k over all heads at once: those weights lie with the heads.
  const bool over_heads = model.family == Family::olmo2 && (has(spec, "q_norm") || has(spec, "k_norm"));
  if (has(spec, "k_proj") || has(spec, "v_proj") || (over_heads && has(spec, "k_norm"))) {
    const auto heads = static_cast<int>(model.num_key_value_heads);
    return heads >= tp ? even(Cut::rows, spec.rows, tp, tp_rank)
                       : even(Cut::rows, spec.rows, heads, static_cast<int>(std::int64_t{tp_rank} * heads / tp));
  }
  if (has(spec, "q_proj") || has(spec, "gate_proj") || has(spec, "up_proj") || over_heads)
    return even(Cut::rows, spec.rows, tp, tp_rank);
  if (!spec.is_vector() && (has(spec, "o_proj") || has(spec, "down_proj")))
    return even(Cut::cols, spec.cols, tp, tp_rank);
  return whole;
}

TensorSpec local_shape(const TensorSpec& spec, const ModelConfig& model, int tp, int tp_rank) {
  TensorSpec local{{}, spec.rows, spec.cols, spec.role, spec.layer, spec.block, spec.follows, spec.heads};
  const TensorShard shard = tensor_shard(spec, model, tp, tp_rank);
  (shard.cut == TensorShard::Cut::cols ? local.cols : local.rows) = shard.end - shard.begin;
  return local;
}

TensorSpec local_spec(const TensorSpec& spec, const ModelConfig& model, int tp, int tp_rank) {
  TensorSpec local = local_shape(spec, model, tp, tp_rank);
  local.name = spec.name;
  return local;
}

std::vector<TensorSpec> local_shapes(const std::vector<TensorSpec>& specs, const ModelConfig& model, int tp,
                                     int tp_rank) {
  std::vector<TensorSpec> local;
  local.reserve(specs.size());
  for (const TensorSpec& spec : specs) local.push_back(local_shape(spec, model, tp, tp_rank));
  return local;
}

}  // namespace sestina
