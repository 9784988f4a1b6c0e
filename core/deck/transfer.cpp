#include "core/deck/transfer.hpp"

#include <cmath>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"

namespace sestina {
namespace {

constexpr const char *hidden_key = "schedule.transfer.from_hidden", *layers_key = "schedule.transfer.from_layers";

// Returns p for the matrices of optimizer.kind; empty: no rule is known.
std::optional<double> power_of(const OptimizerOptions& optimizer) {
  const MatrixKind& kind = *find_matrix_kind(optimizer.kind);
  if (kind.width_power == nullptr) return std::nullopt;
  constexpr double one_rms = 0.5, aligned = 1;  // p of updates of one RMS: whitened, and elementwise
  const std::optional<double> own = kind.width_power(*optimizer.matrix);
  if (!own) return own;
  const double sized = kind.work == nullptr ? aligned : one_rms;  // without products: elementwise
  const UpdateRules& rules = optimizer.rules;
  if (rules.hyperball || rules.relative_update) return sized - one_rms;
  return rules.update_rms > 0 ? sized : *own;
}

// Collects errors where what is derived would not be what the rules are about.
void require_rule(Deck& deck, const Options& options) {
  const ModelConfig& model = options.model;
  const OptimizerOptions& optimizer = options.optimizer;
  const char* const key = optimizer.transfer.width != 1 ? hidden_key : layers_key;
  if (!model.linear.is_dense())
    deck.error(key, fmt::format("the rules are those of dense weights (model.linear.form = \"{}\")", model.linear.form),
               "no such key, or model.linear.form = \"dense\"");
  if (optimizer.transfer.width != 1 && model.tie_word_embeddings)
    deck.error(hidden_key, "a tied head has one rate with the embedding, and the rules give them two",
               "no such key, or model.tie_word_embeddings = false");
  if (optimizer.transfer.depth != 1 && model.family == Family::olmo2)
    deck.error(layers_key, "the norms after the branches of olmo2 undo what scales a branch", "no such key");
  if (optimizer.matrix && !power_of(optimizer))
    deck.error(key, "kind = \"" + optimizer.kind + "\" has no rule for another width or depth",
               "no such key with this kind");
}

// Ranges that [model.init] takes from the inputs of a weight follow its width already.
void scale_ranges(const Deck& deck, const RateTransfer& transfer, ModelConfig& model) {
  for (std::size_t i = 0; i < model.init.size(); ++i) {
    const auto role = static_cast<InitRole>(i);
    if (role == InitRole::embed) continue;
    const bool follows = deck.given(fmt::format("model.init.{}", init_role_names[i])) == "\"fan_in\"";
    double factor = std::pow(transfer.width, (role == InitRole::head ? -1 : -0.5) + (follows ? 0.5 : 0));
    if (role == InitRole::o || role == InitRole::down) factor /= transfer.depth;
    if (factor != 1) model.init[i] = factor * model.init[i].value_or(model.initializer_range);
  }
}

}  // namespace

TransferOptions read_transfer(Deck& deck) {
  return {deck.integer(hidden_key, 0, not_negative), deck.integer(layers_key, 0, not_negative)};
}

void apply_transfer(Deck& deck, Options& options) {
  const TransferOptions& from = options.schedule.transfer;
  RateTransfer& transfer = options.optimizer.transfer;
  const auto ratio = [](std::int64_t now, std::int64_t was) {
    return was > 0 ? static_cast<double>(now) / static_cast<double>(was) : 1.0;
  };
  transfer.width = ratio(options.model.hidden_size, from.from_hidden);
  transfer.depth = ratio(options.model.num_hidden_layers, from.from_layers);
  if (!transfer.on()) return;
  require_rule(deck, options);
  if (options.optimizer.matrix) transfer.matrix_power = power_of(options.optimizer).value_or(0);
  transfer.sized_by_weight = options.optimizer.rules.hyperball || options.optimizer.rules.relative_update;
  scale_ranges(deck, transfer, options.model);
}

}  // namespace sestina
