// A comparison of runs as a table, and as one JSON object.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/report/comparison.hpp"
#include "io/report/page.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

Json json_number(std::optional<double> value) { return value && std::isfinite(*value) ? Json(*value) : Json(nullptr); }

Json entry_json(const ComparedEntry& entry) {
  return {{"name", entry.name},
          {"n", entry.n()},
          {"mean", json_number(entry.loss.mean)},
          {"spread", json_number(entry.loss.spread)},
          {"steps", static_cast<std::int64_t>(entry.steps)},
          {"updates_to_target", json_number(entry.updates)},
          {"updates_spread", json_number(entry.updates_spread)},
          {"tokens_to_target", json_number(entry.tokens)},
          {"tokens_spread", json_number(entry.tokens_spread)},
          {"reached", entry.reached},
          {"z", json_number(entry.z)},
          {"p", json_number(entry.p)},
          {"mid_schedule", entry.mid_schedule.empty() ? Json(nullptr) : Json(entry.mid_schedule)},
          {"runs", entry.runs}};
}

std::string digits_or(std::optional<double> value, const char* otherwise) {
  return value && std::isfinite(*value) ? fmt::format("{:.4f}", *value) : otherwise;
}

std::string counted(const std::optional<double>& value, const std::optional<double>& spread) {
  if (!value) return "not reached";
  return short_number(*value) + (spread ? fmt::format(" +- {}", short_number(*spread)) : "");
}

std::string significance(const std::optional<double>& z, const std::optional<double>& p) {
  return z ? fmt::format("{:.2f}  p {:.2g}{}", *z, *p, *p < contest_p ? " *" : "") : "-";
}

std::string entry_line(const ComparedEntry& entry, std::size_t width) {
  std::string line = fmt::format("{:{}}  {:>2}  {:>8}  {:>7}  {:>7}  {:>16}  {:>16}  {}", entry.name, width, entry.n(),
                                 digits_or(entry.loss.mean, "diverged"), digits_or(entry.loss.spread, "-"),
                                 short_number(entry.steps), counted(entry.updates, entry.updates_spread),
                                 counted(entry.tokens, entry.tokens_spread), significance(entry.z, entry.p));
  if (entry.updates && entry.reached < entry.n())
    line += fmt::format("  ({} of {} runs reach it)", entry.reached, entry.n());
  return line + "\n";
}

}  // namespace

std::string comparison_text(const Comparison& comparison) {
  std::size_t width = 5;
  for (const ComparedEntry& entry : comparison.entries) width = std::max(width, entry.name.size());
  const std::string target = digits_or(comparison.target, "-");
  std::string text = fmt::format(
      "final {} loss; target {}; sigma {:.4g} ({})\n"
      "{:{}}  {:>2}  {:>8}  {:>7}  {:>7}  {:>16}  {:>16}  z (* p < {})\n",
      comparison.validation ? "validation" : "training", target, comparison.sigma, comparison.sigma_from, "entry",
      width, "n", "mean", "spread", "steps", "updates to it", "tokens to it", contest_p);
  for (const ComparedEntry& entry : comparison.entries) text += entry_line(entry, width);
  for (const ComparedEntry& entry : comparison.entries)
    if (!entry.mid_schedule.empty())
      text +=
          fmt::format("{}: {}; a loss there is no result, and no test is made of it\n", entry.name, entry.mid_schedule);
  for (const ComparedPair& pair : comparison.pairs) {
    const std::string &better = comparison.entries[pair.better].name, &other = comparison.entries[pair.other].name;
    text += fmt::format("{} before {}: {:.4f} lower in {} steps fewer, z {}\n", better, other, pair.difference,
                        pair.steps, significance(pair.z, pair.p));
  }
  return text;
}

std::string comparison_json(const Comparison& comparison) {
  Json entries = Json::array(), pairs = Json::array();
  for (const ComparedEntry& entry : comparison.entries) entries.push_back(entry_json(entry));
  for (const ComparedPair& pair : comparison.pairs)
    pairs.push_back({{"better", comparison.entries[pair.better].name},
                     {"other", comparison.entries[pair.other].name},
                     {"difference", pair.difference},
                     {"steps", static_cast<std::int64_t>(pair.steps)},
                     {"z", json_number(pair.z)},
                     {"p", pair.p}});
  const Json all = {{"metric", comparison.validation ? "validation" : "training"},
                    {"target", json_number(comparison.target)},
                    {"sigma", comparison.sigma},
                    {"sigma_from", comparison.sigma_from},
                    {"entries", entries},
                    {"pairs", pairs}};
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace sestina
