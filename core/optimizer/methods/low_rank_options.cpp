#include "core/optimizer/methods/low_rank_options.hpp"

#include <algorithm>

#include "core/deck/options.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/sides.hpp"

namespace sestina {

void LowRankOptions::fields(OptionFields& f, const std::vector<std::string>& projectors) {
  f.integer("rank", rank);
  f.choice("side", side, {"auto", "left", "right"});
  f.number("scale", scale);
  f.number("beta1", beta1, below_one);
  f.number("beta2", beta2, below_one);
  f.eps("eps", eps);
  std::string from = given ? "given" : form == BasisForm::svd ? "svd" : projectors.front();
  f.word("projector", from, projectors);
  given = from == "given";
  form = from == "svd" ? BasisForm::svd : BasisForm::gram;
  f.integer("projector_bits", projector_bits);
  f.integer("weight_bits", weight_bits);
  f.choice("decay_order", decay_order, {"after", "before"});
}

LowRank low_rank_of(const LowRankOptions& options, std::int64_t rows, std::int64_t cols) {
  const std::int64_t shorter = std::min(rows, cols), asked = options.rank;
  LowRank low;
  low.rank = asked == 0 ? std::max<std::int64_t>(1, shorter / 4) : std::min(asked, shorter);
  using Side = LowRankOptions::Side;
  low.right = options.side == Side::right || (options.side == Side::automatic && rows >= cols);
  return low;
}

namespace {

void add_projector(std::vector<FieldSize>& fields, const LowRankOptions& options, const LowRank& low, std::int64_t rows,
                   std::int64_t cols) {
  const std::int64_t p_rows = low.right ? low.rank : rows, p_cols = low.right ? cols : low.rank, n = p_rows * p_cols;
  if (!options.has_coded_projector()) {
    fields.push_back({"projector", DType::f32, p_rows, p_cols, false, FieldUse::result});
    return;
  }
  const auto group = static_cast<std::int64_t>(projector_group), groups = (n + group - 1) / group;
  fields.push_back({"projector_codes", DType::u8, (n * options.projector_bits + 7) / 8 + groups, 1});
  fields.push_back({"projector_scales", DType::f32, groups, 1});
}

}  // namespace

std::vector<FieldSize> low_rank_fields(const LowRankOptions& options, std::int64_t rows, std::int64_t cols,
                                       std::int64_t block) {
  const LowRank low = low_rank_of(options, rows, cols);
  const std::int64_t small_rows = low.right ? rows : low.rank, small_cols = low.right ? low.rank : cols;
  std::vector<FieldSize> fields;
  add_projector(fields, options, low, rows, cols);
  for (const char* name : {"momentum", "second_moment"})
    if (block > 0)
      add_coded_fields(fields, name, small_rows, small_cols, block);
    else
      fields.push_back({name, DType::f32, small_rows, small_cols});
  for (FieldSize& field : fields) field.of_basis = true;
  add_counters(fields, {false, false});
  return fields;
}

double projection_work(const LowRank& low, std::int64_t rows, std::int64_t cols) {
  return 4 * static_cast<double>(low.rank) * static_cast<double>(rows) * static_cast<double>(cols);
}
namespace {

// Weights in 8 bits are kept in a form of their own (core/layout/int8_form.cpp).
constexpr const char* weight_bits_key = "optimizer.weight_bits";

// Refuses options that coded rows are not made for, each with the values that fit them.
void refuse_with_codes(Deck& deck, const Options& options) {
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
  refuse_if(options.model.has_experts(), "model.family", "the weights of experts are not coded",
            "a family without experts");
  refuse_if(optimizer.qk_clip > 0, "optimizer.qk_clip", "it scales weights in place", "0");
  refuse_if(optimizer.rules.any(), key_of(optimizer.rules).c_str(), "it moves weights of 32 bits", "no such key");
  refuse_if(optimizer.per_head, "optimizer.per_head", "coded weights are updated whole", "false");
  refuse_if(options.metrics.tensors_every > 0, "metrics.tensors_every", "it reads master weights", "0");
  refuse_if(options.metrics.updates_every > 0, "metrics.updates_every", "it reads master weights", "0");
}

// A projector in fewer bits is decoded where it is used: it has no pages of its own.
void check_projector(Deck& deck, const MatrixOptions& matrix, std::int64_t bits) {
  constexpr const char* key = "optimizer.projector_bits";
  if (bits != 32 && bits != 8 && bits != 4)
    deck.error(key, "no such width", "32, 8, 4");
  else if (bits != 32 && matrix.pages_any(MemorySpace::host))
    deck.error(key, "conflicts with optimizer.refresh.tier = \"nvme\": projectors in fewer bits stay in memory", "32");
}

void choose_coded_weights(Deck& deck, Options& options) {
  OptimizerOptions& optimizer = options.optimizer;
  refuse_with_codes(deck, options);
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

}  // namespace

void check_low_rank(Deck& deck, Options& options, const LowRankOptions& keys) {
  check_projector(deck, *options.optimizer.matrix, keys.projector_bits);
  if (keys.weight_bits == 8)
    choose_coded_weights(deck, options);
  else if (keys.weight_bits != 32)
    deck.error(weight_bits_key, "no such width", "32, 8");
}

}  // namespace sestina
