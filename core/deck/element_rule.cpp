#include "core/deck/element_rule.hpp"

#include <algorithm>
#include <utility>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"

namespace sestina {

const std::vector<std::string>& element_rules() {
  static const std::vector<std::string> words = {"adamw", "lion", "ademamix", "schedule-free"};
  return words;
}

const std::string& name(ElementRule rule) { return element_rules()[static_cast<std::size_t>(rule)]; }

std::optional<ElementRule> find_element_rule(std::string_view word) {
  const auto found = std::find(element_rules().begin(), element_rules().end(), word);
  if (found == element_rules().end()) return std::nullopt;
  return static_cast<ElementRule>(found - element_rules().begin());
}

const std::vector<std::string>& element_fields(ElementRule rule) {
  static const std::vector<std::string> fields[] = {{"momentum", "second_moment"},
                                                    {"momentum"},
                                                    {"momentum", "slow_momentum", "second_moment"},
                                                    {"average", "second_moment"}};
  return fields[static_cast<std::size_t>(rule)];
}

// Defaults are those of the papers: arXiv 2302.06675 (for language models), 2409.03137 and 2405.15682.
AdamWOptions read_element_options(Deck& deck, const std::string& at, ElementRule rule, double lr,
                                  const ScheduleOptions& schedule) {
  AdamWOptions numbers;
  numbers.rule = rule;
  if (rule == ElementRule::lion) numbers.beta1 = 0.95, numbers.beta2 = 0.98;
  if (rule == ElementRule::ademamix || rule == ElementRule::schedule_free) numbers.beta2 = 0.999;
  numbers.lr = deck.maybe_number(at + ".lr", not_negative).value_or(lr);
  numbers.beta1 = deck.number(at + ".beta1", numbers.beta1, below_one);
  numbers.beta2 = deck.number(at + ".beta2", numbers.beta2, below_one);
  if (rule != ElementRule::lion) numbers.eps = deck.number(at + ".eps", numbers.eps, eps_range);
  numbers.weight_decay = deck.number(at + ".weight_decay", numbers.weight_decay, not_negative);
  if (rule == ElementRule::schedule_free) numbers.warmup = schedule.warmup_steps;
  if (rule != ElementRule::ademamix) return numbers;
  numbers.beta3 = deck.number(at + ".beta3", numbers.beta3, below_one);
  numbers.alpha = deck.number(at + ".alpha", numbers.alpha, not_negative);
  const std::int64_t warmup = deck.integer(at + ".ademamix_warmup", 0, not_negative);
  numbers.warmup = warmup == 0 ? schedule.steps : warmup;
  return numbers;
}

namespace {

void refuse_norms(Deck& deck, const UpdateRules& rules, const std::string& kind) {
  for (const auto& [key, on] : rules_of(rules))
    if (on && std::string_view(key) != "cautious")
      deck.error(fmt::format("optimizer.{}", key),
                 "needs norms of whole matrices, and kind = \"" + kind + "\" updates each element by itself",
                 "no such key with this kind; kind = \"adam\" is AdamW on whole matrices");
}

}  // namespace

void require_element_rule(Deck& deck, const OptimizerOptions& optimizer) {
  const ElementRule rule = optimizer.adamw.rule;
  if (!optimizer.matrix) refuse_norms(deck, optimizer.rules, optimizer.kind);
  if (rule != ElementRule::adamw && optimizer.state_bits == 8)
    deck.error("optimizer.state_bits", fmt::format("\"{}\" keeps its state in 32 bits", name(rule)), "32");
  if (rule != ElementRule::lion) return;
  for (std::size_t i = 0; i < optimizer.group.size(); ++i)
    if (optimizer.group[i].eps)
      deck.error(fmt::format("optimizer.group.{}.eps", i), "\"lion\" divides by nothing", "no such key");
}

void require_averages(Deck& deck, const Options& options) {
  const bool averages = options.optimizer.adamw.averages();
  if (!options.model.linear.is_dense()) {
    constexpr const char* parts = "an average of the parts of a weight is not the average of the weight";
    if (options.train.ema_tau > 0)
      deck.error("train.ema_tau", fmt::format("{} (model.linear.form = \"{}\")", parts, options.model.linear.form),
                 "0 with other forms than dense");
    if (averages)
      deck.error("optimizer.kind", fmt::format("{} (model.linear.form = \"{}\")", parts, options.model.linear.form),
                 "another kind with other forms than dense");
  }
  if (averages && options.optimizer.qk_clip > 0)
    deck.error("optimizer.qk_clip", "would move the weights of kind = \"schedule-free\" away from their average", "0");
  if (options.train.ema_tau > 0 && options.train.ema_tau < 1)
    deck.error("train.ema_tau", "the mean would go beyond the weights", "0, or a number >= 1");
}

void require_lookahead(Deck& deck, const Options& options) {
  constexpr const char *key = "train.lookahead.factor", *off = "0";
  const ParallelOptions& parallel = options.parallel;
  if (options.train.lookahead.factor == 0) return;
  if (!options.model.linear.is_dense())
    deck.error(key,
               fmt::format("parts of a weight that move on by themselves are not the weight that does "
                           "(model.linear.form = \"{}\")",
                           options.model.linear.form),
               off);
  if (options.optimizer.adamw.averages())
    deck.error(key, "kind = \"schedule-free\" takes gradients at a point of its own", off);
  if (parallel.is_async())
    deck.error(key, "passes of an asynchronous pipeline begin at weights that later updates have moved on from", off);
  if (replicas_drift(parallel, options.optimizer))
    deck.error(key, "replicas that drift (optimizer.refresh.visibility = \"eager\") have displacements of their own",
               off);
}

std::string element_rule_warning(const OptimizerOptions& optimizer, const ScheduleOptions& schedule) {
  if (!optimizer.adamw.averages() || schedule.kind == ScheduleOptions::Kind::constant) return "";
  return "optimizer.kind = \"schedule-free\" averages its weights in the place of a falling learning rate: it expects "
         "schedule.kind = \"constant\", with a warm-up";
}

}  // namespace sestina
