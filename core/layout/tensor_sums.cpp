#include "core/layout/tensor_sums.hpp"

#include <algorithm>

#include "core/deck/options.hpp"
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

namespace {

struct ShardSides {
  std::int64_t out = 0, in = 0;
};

// Of a weight on one of tp ranks; where key and value heads are fewer than ranks, several hold the same one.
ShardSides sides_on_rank(const TensorSpec& weight, const ModelConfig& model, std::int64_t tp) {
  switch (weight.cut) {
    case TensorCut::none:
      break;
    case TensorCut::rows:
      return {weight.rows / tp, weight.cols};
    case TensorCut::key_value:
      return {weight.rows / std::min(tp, model.num_key_value_heads), weight.cols};
    case TensorCut::cols:
      return {weight.rows, weight.cols / tp};
  }
  return {weight.rows, weight.cols};
}

}  // namespace

double flops_per_token(const Options& options) {
  const ModelConfig& model = options.model;
  const std::int64_t sequence = options.data.sequence_length;
  const double dense = flops_per_token(model, sequence);
  const WeightForm* form = find_weight_form(model.linear);
  if (form == nullptr) return dense;
  const int dp = options.parallel.dp, tp = options.parallel.tp;
  const auto pass_tokens = static_cast<double>(shared_micro_batch(options.train, dp) * sequence),
             update_tokens = static_cast<double>(options.train.global_batch * sequence);
  const auto every = static_cast<double>(form->merge_every(model.linear));
  const double merges = every > 0 ? dp / (every * update_tokens) : 0;  // per token
  return dense + sum_over_tensors(model, [&](const TensorSpec& spec) {
           if (spec.part != 0) return 0.0;  // the first part has the shape of the weight
           const ShardSides sides = sides_on_rank(spec, model, tp);
           const FormWork work = form->work(model.linear, sides.out, sides.in);
           return tp * (work.per_row + work.per_pass / pass_tokens + work.per_merge * merges) -
                  6 * static_cast<double>(spec.elements());
         });
}

}  // namespace sestina
