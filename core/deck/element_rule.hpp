// The rules that update each element of a tensor by itself, with their numbers. As optimizer.kind such a rule updates
// every tensor, as optimizer.scalar.kind what a matrix optimizer leaves. The formulas stand in
// kernels/optimizer/adamw.hpp and kernels/optimizer/element_rules.hpp. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sestina {

class Deck;
struct OptimizerOptions;
struct Options;
struct ScheduleOptions;

enum class ElementRule : std::uint8_t { adamw, lion, ademamix, schedule_free };
const std::vector<std::string>& element_rules();  // the words of the deck, in the order of the enumeration
const std::string& name(ElementRule);
std::optional<ElementRule> find_element_rule(std::string_view word);  // empty: no such rule

// Returns the names of the arrays that a rule keeps, each of the shape of the tensor.
const std::vector<std::string>& element_fields(ElementRule);

// The numbers of a rule for one set of tensors. lr is the peak; eps and the numbers after the decay are those of rules
// that have them.
struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  std::optional<double> momentum_decay = {};  // parallel.delay_correction = "nesterov": psi; empty: AdamW as it is
  ElementRule rule = ElementRule::adamw;
  double beta3 = 0.9999, alpha = 8;  // ademamix: decay and weight of the slow momentum
  // Updates of a warm-up: of alpha and beta3 (ademamix), of the learning rate (schedule_free).
  std::int64_t warmup = 0;
  // Returns whether the run trains at one point and its model is another: the average that the rule keeps.
  bool averages() const { return rule == ElementRule::schedule_free; }
};

// Reads the numbers of a rule from the section `at`; lr is the default of its peak.
AdamWOptions read_element_options(Deck&, const std::string& at, ElementRule, double lr, const ScheduleOptions&);

// Collects errors for keys of [optimizer] that the rule does not know: those that need norms of whole matrices, and
// state in 8 bits, which is AdamW's alone.
void require_element_rule(Deck&, const OptimizerOptions&);
// Collects errors, once all sections are read, where averages of weights (train.ema_tau, schedule-free) would not be
// those of the model.
void require_averages(Deck&, const Options&);
// The same where weights cannot look ahead (train.lookahead).
void require_lookahead(Deck&, const Options&);

// Returns what to tell before a run whose schedule the rule does not expect; empty when nothing.
std::string element_rule_warning(const OptimizerOptions&, const ScheduleOptions&);

}  // namespace sestina
