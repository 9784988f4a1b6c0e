// The resolved deck as TOML, and the keys that a resume may change.
#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>

#include "core/deck/deck_state.hpp"

namespace sestina {
namespace {

bool is_index(std::string_view word) {
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](char c) { return std::isdigit(static_cast<unsigned char>(c)); });
}

struct Section {
  std::string name;
  std::vector<std::string> keys;
};

// Returns the sections in the order they were read, those of one family together, parents before children.
std::vector<Section> sections_of(const std::vector<std::string>& order) {
  std::vector<Section> sections;
  std::vector<std::string> families;
  for (const auto& key : order) {
    const auto dot = key.rfind('.');
    const std::string name = dot == key.npos ? "" : key.substr(0, dot);
    auto found =
        std::find_if(sections.begin(), sections.end(), [&](const Section& section) { return section.name == name; });
    if (found == sections.end()) found = sections.insert(sections.end(), {name, {}});
    found->keys.push_back(key);
    families.push_back(name.substr(0, name.find('.')));
  }
  const auto rank = [&](const Section& section) {
    const std::string family = section.name.substr(0, section.name.find('.'));
    return std::pair(section.name.empty() ? -1 : std::find(families.begin(), families.end(), family) - families.begin(),
                     std::count(section.name.begin(), section.name.end(), '.'));
  };
  std::stable_sort(sections.begin(), sections.end(),
                   [&](const Section& a, const Section& b) { return rank(a) < rank(b); });
  return sections;
}

std::string header(const std::string& section) {
  const auto dot = section.rfind('.');
  const bool entry = dot != section.npos && is_index(std::string_view(section).substr(dot + 1));
  return entry ? fmt::format("[[{}]]", section.substr(0, dot)) : fmt::format("[{}]", section);
}

// The keys that a resume may change, with "*" for an index or for all keys of a section; inputs/README.md lists the
// same.
constexpr std::string_view changeable[] = {
    "run.name",
    "run.dir",
    "run.steps",
    "run.walltime",
    "run.stop_signals",
    "run.abort_timeout",
    "run.start_timeout",
    "run.on_nonfinite",
    "run.on_spike",
    "run.spike_window",
    "run.spike_factor",
    "run.max_rollbacks",
    "run.space",
    "run.threads",
    "run.audit_every",
    "run.on_audit",
    "run.check_speed",
    "run.check",
    "machine.*",
    "data.tokenizer",
    "data.invalid_limit",
    "data.source.*.path",
    "data.validation.*",
    "model.router_bias_rate",
    "model.router_bias_until",
    "train.micro_batch",
    "train.recompute",
    "train.graphs",
    "train.logit_bytes",
    "schedule.steps",
    "schedule.decay_steps",
    "optimizer.on_missing",
    "optimizer.state_tier",
    "optimizer.refresh.workers",
    "optimizer.refresh.cores",
    "optimizer.refresh.priority",
    "optimizer.refresh.tier",
    "optimizer.refresh.tier.*",
    "optimizer.refresh.path",
    "optimizer.refresh.device_bytes",
    "optimizer.refresh.host_bytes",
    "optimizer.refresh.nvme_bytes",
    "optimizer.refresh.queue_depth",
    "parallel.*",
    "checkpoint.*",
    "metrics.*",
};

// These keys may not change: the delays of an asynchronous pipeline and, where there is one, what they follow from.
constexpr std::string_view fixed[] = {
    "parallel.delay_scale",    "parallel.stash",          "parallel.delay_correction", "parallel.correction_steps",
    "parallel.momentum_decay", "parallel.pipemare_decay", "parallel.pipemare_warmup",  "parallel.dc_lambda"};
constexpr std::string_view fixed_when_asynchronous[] = {"train.micro_batch", "parallel.dp", "parallel.schedule",
                                                        "parallel.clip_scope"};

bool is_asynchronous(const Deck& deck) {
  return deck.resolved("parallel.schedule") == "\"async-1f1b\"" && deck.resolved("parallel.pp") != "1";
}

// Ranks may differ in these keys too; the files at the paths are compared instead.
constexpr std::string_view local_to_rank[] = {
    "run.dir",
    "run.threads",
    "data.tokenizer",
    "data.source.*.path",
    "data.validation.*.path",
    "model.from_hf",
    "optimizer.refresh.path",
    "optimizer.refresh.cores",
    "checkpoint.staging_dir",
};

template <class Patterns>
bool matches_any(std::string_view key, const Patterns& patterns) {
  std::string pattern_key;  // indexes as "*"
  for (std::size_t begin = 0; begin <= key.size();) {
    const auto end = std::min(key.find('.', begin), key.size());
    const auto word = key.substr(begin, end - begin);
    if (begin != 0) pattern_key += '.';
    pattern_key += is_index(word) ? "*" : word;
    begin = end + 1;
  }
  return std::any_of(std::begin(patterns), std::end(patterns), [&](std::string_view pattern) {
    if (pattern.ends_with(".*"))
      return pattern_key.compare(0, pattern.size() - 1, pattern.substr(0, pattern.size() - 1)) == 0;
    return pattern_key == pattern;
  });
}

}  // namespace

std::string Deck::dump() const {
  std::string text;
  for (const auto& section : sections_of(state_->order)) {
    if (!section.name.empty()) text += fmt::format("{}{}\n", text.empty() ? "" : "\n", header(section.name));
    for (const auto& key : section.keys) {
      const std::string& value = state_->resolved.at(key);
      const std::string name = key.substr(key.rfind('.') + 1);
      text += value.empty() ? fmt::format("# {} is not set\n", name) : fmt::format("{} = {}\n", name, value);
    }
  }
  return text;
}

std::string Deck::resolved(std::string_view key) const {
  const auto found = state_->resolved.find(std::string(key));
  return found == state_->resolved.end() ? "" : found->second;
}

std::vector<std::string> Deck::resolved_keys() const { return state_->order; }

std::vector<DeckDifference> forbidden_changes(const Deck& stored, const Deck& now) {
  std::vector<std::string> keys = stored.resolved_keys();
  std::set<std::string> seen(keys.begin(), keys.end());
  for (const auto& key : now.resolved_keys())
    if (seen.insert(key).second) keys.push_back(key);
  const bool asynchronous = is_asynchronous(stored) || is_asynchronous(now);
  std::vector<DeckDifference> differences;
  for (const auto& key : keys) {
    const std::string before = stored.resolved(key), after = now.resolved(key);
    const bool free = matches_any(key, changeable) && !matches_any(key, fixed) &&
                      !(asynchronous && matches_any(key, fixed_when_asynchronous));
    if (before != after && !free) differences.push_back({key, before, after});
  }
  return differences;
}

bool is_local_to_rank(std::string_view key) { return matches_any(key, local_to_rank); }

}  // namespace sestina
