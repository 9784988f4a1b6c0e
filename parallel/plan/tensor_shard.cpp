#include "parallel/plan/tensor_shard.hpp"

namespace sestina {
namespace {

// Even parts; the first ones are larger by one where they do not divide.
TensorShard even(TensorShard::Cut cut, std::int64_t size, int parts, int part) {
  const auto edge = [&](std::int64_t p) { return (size * p + parts - 1) / parts; };
  return {cut, edge(part), edge(part + 1)};
}

}  // namespace

TensorShard tensor_shard(const TensorSpec& spec, const ModelConfig& model, int tp, int tp_rank) {
  using Cut = TensorShard::Cut;
  const TensorCut cut = tp == 1 ? TensorCut::none : spec.cut;
  const auto heads = static_cast<int>(model.num_key_value_heads);
  switch (cut) {
    case TensorCut::none:
      break;
    case TensorCut::rows:
      return even(Cut::rows, spec.rows, tp, tp_rank);
    case TensorCut::key_value:
      return heads >= tp ? even(Cut::rows, spec.rows, tp, tp_rank)
                         : even(Cut::rows, spec.rows, heads, static_cast<int>(std::int64_t{tp_rank} * heads / tp));
    case TensorCut::cols:
      return even(Cut::cols, spec.cols, tp, tp_rank);
  }
  return {Cut::none, 0, spec.rows};
}

TensorSpec local_shape(const TensorSpec& spec, const ModelConfig& model, int tp, int tp_rank) {
  TensorSpec local{{},         spec.rows, spec.cols,        spec.role,    spec.layer,      spec.block,  spec.follows,
                   spec.heads, spec.cut,  spec.gradient_of, spec.initial, spec.projection, spec.of_norm};
  local.part = spec.part;
  local.trainable = spec.trainable;
  local.stored = spec.stored;
  local.group = spec.group;
  local.skew_block = spec.skew_block;
  const TensorShard shard = tensor_shard(spec, model, tp, tp_rank);
  (shard.cut == TensorShard::Cut::cols ? local.cols : local.rows) = shard.end - shard.begin;
  if (spec.heads > 0 && spec.rows > 0)  // those at hand: cuts fall between heads
    local.heads = static_cast<int>(spec.heads * local.rows / spec.rows);
  return local;
}

TensorSpec local_spec(const TensorSpec& spec, const ModelConfig& model, int tp, int tp_rank) {
  TensorSpec local = local_shape(spec, model, tp, tp_rank);
  local.name = spec.name;
  local.weight = spec.weight;
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
