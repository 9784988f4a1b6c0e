// optimizer.weight_bits: weights of matrices in 8 bits, kept in a form of their own (core/layout/int8_form.cpp).
#include <algorithm>

#include "core/deck/deck.hpp"
#include "core/optimizer/kinds/routing.hpp"

namespace sestina {
namespace {

constexpr const char* weight_bits_key = "optimizer.weight_bits";

// What coded rows are not made for, each with the values that go with them.
void refuse_beside_codes(Deck& deck, const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  const OptimizerOptions& optimizer = options.optimizer;
  const auto refuse_if = [&deck](bool wrong, const char* key, const char* what, const char* allowed) {
    if (wrong) deck.error(key, std::string("conflicts with optimizer.weight_bits = 8: ") + what, allowed);
  };
  refuse_if(!options.model.linear.is_dense(), "model.linear.form", "it keeps weights in its own way", "dense");
  refuse_if(parallel.tp > 1, "parallel.tp", "a matrix goes home as it is computed with, which 8 bits would round twice",
            "1");
  refuse_if(parallel.is_async(), "parallel.schedule", "earlier versions are kept of weights in 16 and 32 bits alone",
            "1f1b, gpipe, interleaved, zb-h1");
  refuse_if(optimizer.matrix->refresh_eager, "optimizer.refresh.visibility",
            "replicas that differ would be averaged, which codes cannot be", "fixed");
  refuse_if(optimizer.qk_clip > 0, "optimizer.qk_clip", "it scales weights in place", "0");
  refuse_if(optimizer.per_head, "optimizer.per_head", "coded weights are updated whole", "false");
  refuse_if(options.metrics.tensors_every > 0, "metrics.tensors_every", "it reads master weights", "0");
}

}  // namespace

void settle_weight_bits(Deck& deck, Options& options) {
  OptimizerOptions& optimizer = options.optimizer;
  if (!optimizer.matrix) return;
  optimizer.matrix->run_seed = options.run.seed;
  const auto bits = optimizer.matrix->numbers.find("weight_bits");
  if (bits == optimizer.matrix->numbers.end() || bits->second == 32) return;
  if (bits->second != 8) return deck.error(weight_bits_key, "no such width", "32, 8");
  refuse_beside_codes(deck, options);
  LinearOptions& linear = options.model.linear;
  if (!linear.is_dense()) return;
  linear.form = "int8";
  linear.group_size = find_matrix_kind(optimizer.kind)->weight_group;
  const std::vector<TensorSpec> specs = tensor_specs(options.model);
  const auto other = std::find_if(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
    return spec.is_coded() && !is_matrix_optimized(spec, optimizer);
  });
  if (other != specs.end())
    deck.error(weight_bits_key, fmt::format("a group gives {} to AdamW, which updates weights in 32 bits", other->name),
               "32, or no [[optimizer.group]] with kind = \"adamw\" for weights inside blocks");
}

}  // namespace sestina
