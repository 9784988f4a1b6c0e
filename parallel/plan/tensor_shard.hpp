// What a tensor-parallel rank holds of a tensor: column-parallel products are cut by rows (q, k, v, gate, up and their
// biases), row-parallel ones by columns (o, down), tables of the vocabulary by rows; the rest is whole on each rank.
// No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

#include "core/layout/tensor_spec.hpp"

namespace sestina {

struct TensorShard {
  enum class Cut { none, rows, cols } cut = Cut::none;
  std::int64_t begin = 0, end = 0;  // of the cut side; none: all rows
};

// Key and value heads fewer than ranks: consecutive ranks hold the same head.
TensorShard tensor_shard(const TensorSpec&, const ModelConfig&, int tp, int tp_rank);

// The local tensor: name and role of the whole one, sides of the shard.
TensorSpec local_spec(const TensorSpec&, const ModelConfig&, int tp, int tp_rank);
// The same without the name, for plans: a model has very many.
TensorSpec local_shape(const TensorSpec&, const ModelConfig&, int tp, int tp_rank);
std::vector<TensorSpec> local_shapes(const std::vector<TensorSpec>&, const ModelConfig&, int tp, int tp_rank);

}  // namespace sestina
