#include "app/sweep/sweep_options.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include "core/deck/deck.hpp"
#include "core/deck/deck_state.hpp"

namespace sestina {
namespace {

constexpr std::string_view grid_section = "sweep.grid.";

bool is_sweep_value(const DeckValue& value) {
  if (value.kind == DeckValue::Kind::array) return std::all_of(value.items.begin(), value.items.end(), is_sweep_value);
  return value.kind != DeckValue::Kind::other;
}

// Returns the key that a grid names, whose dots may stand in quotes: sweep.grid."schedule.lr".
std::string swept_key(std::string_view name) {
  std::string key(name.substr(grid_section.size()));
  std::erase(key, '"');
  return key;
}

// The values of the grid by swept key, each with its name in the deck.
using GridValues = std::map<std::string, std::pair<std::string, DeckValue>>;

void take_grid(const DeckLayer& layer, Deck& deck, GridValues& grid) {
  for (const auto& [name, count] : layer.arrays)
    if (name.starts_with(grid_section))
      deck.error(name, "tables cannot be swept", "an array of numbers, strings, booleans, or arrays of them");
  for (const auto& [name, value] : layer.values)
    if (name.starts_with(grid_section)) grid[swept_key(name)] = {name, value};
}

DeckLayer file_layer(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return parse_deck_text(text, path, "");
}

SweepAxis axis_of(Deck& deck, const std::string& key, const std::string& name, const DeckValue& value) {
  SweepAxis axis{key, {}};
  if (value.kind != DeckValue::Kind::array || value.items.empty() || !is_sweep_value(value)) {
    deck.error(name, value.items.empty() ? "no values" : "cannot be swept",
               "an array of at least one number, string, boolean, or array of them");
    return axis;
  }
  for (const DeckValue& item : value.items) axis.values.push_back(toml_text(item));
  std::vector<std::string> sorted = axis.values;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    deck.error(name, "a value stands twice", "different values");
  if (key == "run.seed") deck.error(name, "seeds are no axis of the grid", "sweep.seeds");
  if (key == "run.dir" || key.starts_with("sweep."))
    deck.error(name, "cannot be swept", "keys that change what is trained");
  return axis;
}

std::vector<SweepAxis> read_grid(Deck& deck, const std::vector<std::string>& files,
                                 const std::vector<std::string>& overrides) {
  GridValues values;
  for (const std::string& path : files) take_grid(file_layer(path), deck, values);
  for (const std::string& assignment : overrides) take_grid(parse_deck_override(assignment), deck, values);
  std::vector<SweepAxis> grid;
  for (const auto& [key, value] : values) grid.push_back(axis_of(deck, key, value.first, value.second));
  if (grid.empty()) deck.error("sweep.grid", "no values to try", "'sweep.grid={\"schedule.lr\"=[1e-3,3e-3]}'");
  deck.forget("sweep.grid");
  return grid;
}

}  // namespace

SweepOptions SweepOptions::read(Deck& deck, const std::vector<std::string>& files,
                                const std::vector<std::string>& overrides) {
  SweepOptions sweep;
  sweep.grid = read_grid(deck, files, overrides);
  sweep.seeds = deck.integers("sweep.seeds", not_negative);
  std::vector<std::int64_t> sorted = sweep.seeds;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    deck.error("sweep.seeds", "a seed stands twice", "different seeds");
  sweep.halving = deck.choice("sweep.method", "grid", {"grid", "halving"}) == "halving";
  sweep.keep = deck.number("sweep.keep", sweep.keep, {.min = 0, .max = 1, .open_min = true, .open_max = true});
  constexpr double most_rungs = 30, most_jobs = 4096;
  sweep.rungs = static_cast<int>(deck.integer("sweep.rungs", 0, {.min = 0, .max = most_rungs}));
  const std::string metric = deck.choice("sweep.metric", "auto", {"auto", "validation", "training"});
  sweep.metric = metric == "auto" ? Metric::automatic : metric == "validation" ? Metric::validation : Metric::training;
  sweep.jobs = static_cast<int>(deck.integer("sweep.jobs", 0, {.min = 0, .max = most_jobs}));
  sweep.threads = static_cast<int>(deck.integer("sweep.threads", 0, {.min = 0, .max = most_jobs}));
  if (sweep.halving)
    for (const SweepAxis& axis : sweep.grid)
      if (axis.key == "run.steps" || axis.key == "schedule.steps")
        deck.error("sweep.method", fmt::format("\"halving\" sets {} itself", axis.key), "\"grid\" for this key");
  return sweep;
}

std::string sweep_grid_text(const std::vector<SweepAxis>& grid) {
  std::string text = "[sweep.grid]\n";
  for (const SweepAxis& axis : grid)
    text += fmt::format("{} = [{}]\n", toml_text(axis.key), fmt::join(axis.values, ", "));
  return text;
}

}  // namespace sestina
