#include "core/layout/tensor_sums.hpp"

#include "core/layout/weight_form.hpp"

namespace sestina {

std::int64_t parameter_count(const ModelConfig& config) {
  return sum_over_tensors(dense_model(config), [](const TensorSpec& spec) { return spec.elements(); });
}

std::int64_t trainable_count(const ModelConfig& config) {
  return sum_over_tensors(config, [](const TensorSpec& spec) { return spec.trainable ? spec.elements() : 0; });
}

double flops_per_token(const ModelConfig& c, std::int64_t sequence) {
  const std::int64_t in_products = (c.tie_word_embeddings ? c.vocab_size * c.hidden_size : 0) +
                                   sum_over_tensors(dense_model(c), [](const TensorSpec& spec) {
                                     return spec.role == Role::matrix || spec.role == Role::head ? spec.elements() : 0;
                                   });
  return 6.0 * static_cast<double>(in_products) +
         12.0 * static_cast<double>(c.num_hidden_layers * c.query_width() * sequence);
}

}  // namespace sestina
