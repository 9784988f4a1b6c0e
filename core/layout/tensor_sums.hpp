// Sums over all tensors of a model without making them all, and the two that everybody asks for. No Kokkos.
#pragma once
#include <type_traits>

#include "core/layout/tensor_spec.hpp"

namespace sestina {

struct Options;

// What `of(spec)` sums to over a model's tensors, as integers or in double. Layers are equal: two of them tell what
// each adds.
template <class Of>
auto sum_over_tensors(ModelConfig config, Of of) {
  using Sum = std::common_type_t<decltype(of(TensorSpec())), std::int64_t>;
  const std::int64_t layers = config.num_hidden_layers;
  const auto sum_of = [&](std::int64_t few) {
    config.num_hidden_layers = few;
    Sum sum = 0;
    for (const TensorSpec& spec : tensor_specs(config)) sum += of(spec);
    return sum;
  };
  const Sum one = sum_of(1);
  return one + static_cast<Sum>(layers - 1) * (sum_of(2) - one);
}

// Of the model, in whatever form its weights are trained; tied weights are counted once.
std::int64_t parameter_count(const ModelConfig&);
std::int64_t trainable_count(const ModelConfig&);  // of them, or of what stands for them, those that an update changes
// FLOPs per token of forward and backward with dense weights: 6 N_matmul + 6 L H (2 h) T; embeddings left out, the head
// counted once.
double flops_per_token(const ModelConfig&, std::int64_t sequence);

// Of a run, in the form of its weights, all ranks together. Dense: as above. In another form, what is
// executed in place of the dense products of a weight: none for gradients of what is frozen, those of adapters and
// rotations, what each micro-batch makes again, and merges, which each data-parallel rank does for itself. What
// tensor-parallel ranks compute equally counts on each of them. Recomputed blocks (train.recompute) are left out, as
// for dense weights.
double flops_per_token(const Options&);

}  // namespace sestina
