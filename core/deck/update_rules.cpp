#include "core/deck/update_rules.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"

namespace sestina {

double UpdateSchedule::decay_factor(std::int64_t t, double rate_factor) const {
  if (decay == Decay::constant) return 1;
  if (decay == Decay::rate) return rate_factor;
  if (steps <= 0 || t >= steps) return 0;
  return 0.5 * (1 + std::cos(std::numbers::pi * static_cast<double>(t) / static_cast<double>(steps)));
}

std::optional<double> UpdateSchedule::momentum_at(std::int64_t t) const {
  if (momentum.empty()) return std::nullopt;
  const auto at = static_cast<double>(t);
  if (at <= momentum.front()[0]) return momentum.front()[1];
  for (std::size_t i = 1; i < momentum.size(); ++i) {
    const auto [begin, low] = momentum[i - 1];
    const auto [end, high] = momentum[i];
    if (at <= end) return low + (high - low) * (at - begin) / (end - begin);
  }
  return momentum.back()[1];
}

std::array<std::pair<const char*, bool>, 9> rules_of(const UpdateRules& rules) {
  return {{{"hyperball", rules.hyperball},
           {"relative_update", rules.relative_update},
           {"update_floor", rules.update_floor > 0},
           {"row_floor", rules.row_floor > 0},
           {"max_update_rms", rules.max_update_rms > 0},
           {"update_rms", rules.update_rms > 0},
           {"radial_brake", rules.radial_brake != 1},
           {"radius_pin", rules.radius_pin},
           {"cautious", rules.cautious}}};
}

std::string key_of(const UpdateRules& rules) {
  for (const auto& [key, on] : rules_of(rules))
    if (on) return fmt::format("optimizer.{}", key);
  return "";
}

UpdateRules read_update_rules(Deck& deck) {
  UpdateRules rules;
  rules.hyperball = deck.boolean("optimizer.hyperball", false);
  rules.relative_update = deck.boolean("optimizer.relative_update", false);
  rules.update_floor = deck.number("optimizer.update_floor", 0, not_negative);
  rules.row_floor = deck.number("optimizer.row_floor", 0, not_negative);
  rules.max_update_rms = deck.number("optimizer.max_update_rms", 0, not_negative);
  rules.update_rms = deck.number("optimizer.update_rms", 0, not_negative);
  if (rules.update_rms > 0 && rules.relative_update)
    deck.error("optimizer.update_rms", "optimizer.relative_update gives the update its size", "one of the two");
  rules.radial_brake = deck.number("optimizer.radial_brake", 1, {.min = 0, .max = 1});
  rules.radius_pin = deck.boolean("optimizer.radius_pin", false);
  rules.cautious = deck.boolean("optimizer.cautious", false);
  if (!rules.hyperball) return rules;
  for (const auto& [key, on] : rules_of(rules))
    if (on && std::string_view(key) != "hyperball")
      deck.error(fmt::format("optimizer.{}", key),
                 "optimizer.hyperball gives update and weight their norms, and nothing decays",
                 "no such key with optimizer.hyperball = true");
  return rules;
}

UpdateSchedule read_update_schedule(Deck& deck, const ScheduleOptions& rate, bool has_momentum) {
  constexpr const char* momentum = "optimizer.momentum_schedule";
  UpdateSchedule schedule;
  const std::string decay = deck.choice("optimizer.decay_schedule", "constant", {"constant", "rate", "cosine"});
  using Decay = UpdateSchedule::Decay;
  schedule.decay = decay == "rate" ? Decay::rate : decay == "cosine" ? Decay::cosine : Decay::constant;
  schedule.steps = rate.steps;
  for (const std::vector<double>& point : deck.number_rows(momentum, 2))
    schedule.momentum.push_back({point[0], point[1]});
  const auto& points = schedule.momentum;
  const auto later = [](const auto& a, const auto& b) { return a[0] >= b[0]; };
  if (!points.empty() && !has_momentum)
    deck.error(momentum, "this kind has no key optimizer.momentum", "no such key");
  else if (std::adjacent_find(points.begin(), points.end(), later) != points.end())
    deck.error(momentum, "updates do not rise", "pairs [update, momentum] in the order of the updates");
  else if (std::any_of(points.begin(), points.end(), [](const auto& p) { return p[1] < 0 || p[1] >= 1; }))
    deck.error(momentum, "a momentum out of range", "pairs [update, momentum] with 0 <= momentum < 1");
  return schedule;
}

void require_rules_fit(Deck& deck, const Options& options) {
  const OptimizerOptions& optimizer = options.optimizer;
  if (!optimizer.matrix || !optimizer.rules.any()) return;
  const std::string rule = key_of(optimizer.rules);
  if (!options.model.linear.is_dense())
    deck.error(rule,
               fmt::format("model.linear.form = \"{}\" does not train the matrices that it acts on",
                           options.model.linear.form),
               "no such key, or model.linear.form = \"dense\"");
  if (options.parallel.tp > 1 && options.parallel.tp_update == ParallelOptions::TpUpdate::distributed)
    deck.error("parallel.tp_update", rule + " acts on whole matrices", "home, duplicated, blockwise");
}

}  // namespace sestina
