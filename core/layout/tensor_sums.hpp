// Sums over all tensors of a model without making them all, and the two that everybody asks for. No Kokkos.
#pragma once
#include "core/layout/tensor_spec.hpp"

namespace sestina {

// What `of(spec)` sums to over a model's tensors. Layers are alike: two of them tell what each adds.
template <class Of>
std::int64_t sum_over_tensors(ModelConfig config, Of of) {
  const std::int64_t layers = config.num_hidden_layers;
  const auto sum_of = [&](std::int64_t few) {
    config.num_hidden_layers = few;
    std::int64_t sum = 0;
    for (const TensorSpec& spec : tensor_specs(config)) sum += of(spec);
    return sum;
  };
  const std::int64_t one = sum_of(1);
  return one + (layers - 1) * (sum_of(2) - one);
}

// Of the model, in whatever form its weights are trained; tied weights are counted once.
std::int64_t parameter_count(const ModelConfig&);
std::int64_t trainable_count(const ModelConfig&);  // of them, or of what stands for them, those that an update changes
// FLOPs per token of forward and backward: 6 N_matmul + 6 L H (2 h) T; embeddings left out, the head counted once.
double flops_per_token(const ModelConfig&, std::int64_t sequence);

}  // namespace sestina
