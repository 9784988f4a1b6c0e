// What a tensor-parallel rank holds of a tensor, from what the tensor's spec says of its cut (TensorCut). No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

#include "core/layout/tensor_spec.hpp"

namespace sestina {

struct TensorShard {
  enum class Cut { none, rows, cols } cut = Cut::none;
  std::int64_t begin = 0, end = 0;  // of the cut side; none: all rows
};

TensorShard tensor_shard(const TensorSpec&, const ModelConfig&, int tp, int tp_rank);

// The local tensor: name and role of the whole one, sides of the shard.
TensorSpec local_spec(const TensorSpec&, const ModelConfig&, int tp, int tp_rank);
// The same without the name, for plans: a model has very many.
TensorSpec local_shape(const TensorSpec&, const ModelConfig&, int tp, int tp_rank);
std::vector<TensorSpec> local_shapes(const std::vector<TensorSpec>&, const ModelConfig&, int tp, int tp_rank);

}  // namespace sestina
