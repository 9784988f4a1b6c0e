// One rank's part of a model under tensor parallelism: its heads, its columns of the MLP, its rows of the vocabulary,
// and its rows of the residual stream (sequence parallelism: Korthikanti et al. 2022). The layers see the part alone.
// No Kokkos.
#pragma once
#include "core/layout/row_share.hpp"
#include "core/layout/tensor_spec.hpp"

namespace sestina {

struct ModelPart {
  // Sizes of this rank: num_attention_heads, num_key_value_heads, intermediate_size and vocab_size are its share,
  // hidden_size and head_dim are whole. So tensor_specs(config) are the local tensors.
  ModelConfig config;
  int tp = 1, tp_rank = 0;
  std::int64_t vocabulary_begin = 0, vocabulary = 0;  // first own row of the vocabulary; all rows
  std::int64_t key_value_heads = 0;                   // of the whole model
  bool sequence_parallel = true;

  bool splits_rows() const { return tp > 1 && sequence_parallel; }
  // Of n rows of the residual stream, those that are here.
  std::int64_t own_rows(std::int64_t n) const {
    return splits_rows() ? first_row_of(n, tp, tp_rank + 1) - first_row_of(n, tp, tp_rank) : n;
  }
  // Ranks that hold the same key and value heads, one after the other.
  int key_value_holders() const { return key_value_heads < tp ? static_cast<int>(tp / key_value_heads) : 1; }
  bool first_key_value_holder() const { return tp_rank % key_value_holders() == 0; }
  std::int64_t largest_vocabulary() const { return (vocabulary + tp - 1) / tp; }  // rows of the largest part
};

// Cuts as parallel/plan/tensor_shard.hpp; tp must fit (tensor_parallel_defects).
ModelPart model_part(const ModelConfig& whole, int tp, int tp_rank, bool sequence_parallel = true);

// Whether the model leaves only a part of this tensor's gradient on each of the ranks that hold the same elements, so
// that their sum is the gradient. Otherwise a rank's gradient is whole, and the same bits on all ranks that hold it.
bool gradient_is_partial(const TensorSpec&, const ModelConfig& whole, int tp, bool sequence_parallel = true);

}  // namespace sestina
