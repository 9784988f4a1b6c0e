// Merges layers, records what was read, and collects the errors about what nobody read.
#include "core/deck/deck_state.hpp"

#include <algorithm>

namespace sestina {
namespace {

std::string parent_of(const std::string& key) {
  const auto dot = key.rfind('.');
  return dot == key.npos ? "" : key.substr(0, dot);
}
std::string_view section_of(std::string_view key) { return key.substr(0, key.find('.')); }
std::string last_of(const std::string& key) { return key.substr(key.rfind('.') + 1); }  // npos + 1 = 0

bool is_below(std::string_view key, std::string_view section) {
  return key.size() > section.size() && key.substr(0, section.size()) == section && key[section.size()] == '.';
}

template <class Map>
void erase_keys_below(Map& map, const std::string& key) {
  const auto begin = map.lower_bound(key + ".");
  auto end = begin;
  while (end != map.end() && is_below(end->first, key)) ++end;
  map.erase(begin, end);
}

template <class Map>
bool has_below(const Map& map, std::string_view key) {
  const auto found = map.lower_bound(std::string(key) + ".");
  return found != map.end() && is_below(found->first, key);
}

std::string listed(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

}  // namespace

void Deck::State::erase_below(const std::string& key) {
  erase_keys_below(values, key);
  erase_keys_below(arrays, key);
  erase_keys_below(tables, key);
}

// Tables merge key by key; a value, or an array of tables, replaces all that was under its name.
void Deck::State::merge(DeckLayer&& layer) {
  for (auto& problem : layer.errors) errors.push_back(std::move(problem));
  broken = broken || layer.broken;
  for (const auto& [name, count] : layer.arrays) {
    erase_below(name);
    arrays[name] = count;
  }
  for (auto& [name, place] : layer.empty_tables) {
    errors.push_back({place, fmt::format("{}: an empty table, got {{}}, allowed a value, or keys in the table", name)});
    complained.insert(name);
  }
  for (auto& [name, place] : layer.tables) {
    const bool is_array = std::any_of(layer.arrays.begin(), layer.arrays.end(),
                                      [&name = name](const auto& array) { return array.first == name; });
    if (!is_array) arrays.erase(name);
    tables[name] = place;
  }
  for (auto& [name, value] : layer.values) {
    erase_below(name);
    arrays.erase(name);
    tables.erase(name);
    for (std::string parent = parent_of(name); !parent.empty(); parent = parent_of(parent)) values.erase(parent);
    values[name] = std::move(value);
  }
}

bool Deck::State::any_below(std::string_view key) const {
  return has_below(values, key) || has_below(tables, key) || tables.count(std::string(key)) > 0;
}

const DeckValue* Deck::State::find(std::string_view key) const {
  const auto found = values.find(std::string(key));
  return found == values.end() ? nullptr : &found->second;
}

void Deck::State::record(std::string_view key, std::string toml) {
  const auto [entry, is_new] = resolved.insert_or_assign(std::string(key), std::move(toml));
  if (is_new) order.push_back(entry->first);
}

DeckProblem Deck::State::problem(std::string_view key, const std::string& what, const std::string& allowed) const {
  const std::string name(key);
  const DeckValue* value = find(key);
  const auto table = tables.find(name);
  const DeckPlace place = value                   ? value->place
                          : table != tables.end() ? table->second
                                                  : DeckPlace{main_where, "", 0, 0};
  std::string message = fmt::format("{}: {}", name, what);
  if (value) message += ", got " + (value->from_command_line && !value->raw.empty() ? value->raw : toml_text(*value));
  if (!allowed.empty()) message += ", allowed " + allowed;
  return {place, message};
}

void Deck::State::complain(std::string_view key, const std::string& what, const std::string& allowed) {
  auto& list = find(key) || any_below(key) ? errors : absent;
  list.push_back(problem(key, what, allowed));
  complained.emplace(key);
  if (&list == &errors) wrong.emplace(key);
}

void Deck::State::conclude(std::string_view key, const std::string& what, const std::string& allowed) {
  conclusions.push_back({std::string(key), problem(key, what, allowed), find(key) == nullptr && !any_below(key)});
  complained.emplace(key);
}

void Deck::State::tell_conclusions() {
  for (const Conclusion& c : conclusions) {
    const bool follows = std::any_of(wrong.begin(), wrong.end(), [&](const std::string& key) {
      return section_of(key) == section_of(c.key) || c.problem.message.find(key) != std::string::npos;
    });
    if (!follows) (c.absent ? absent : errors).push_back(c.problem);
  }
  conclusions.clear();
}

void Deck::State::wrong_type(std::string_view key, const DeckValue& value, const std::string& expected) {
  static constexpr const char* names[] = {"a boolean", "an integer", "a float",     "a string",
                                          "a time",    "an array",   "another type"};
  complain(key, fmt::format("wrong type ({})", names[static_cast<int>(value.kind)]), expected);
}

void Deck::State::complain_about_unread() {
  std::set<std::string> known_sections(sections);
  for (const auto& key : order)
    for (std::string section = parent_of(key); !section.empty(); section = parent_of(section))
      known_sections.insert(section);

  const auto silenced = [&](const std::string& key) {
    for (std::string name = key; !name.empty(); name = parent_of(name))
      if (complained.count(name)) return true;
    return false;
  };
  for (const auto& [name, place] : tables) {
    if (known_sections.count(name) || silenced(name)) continue;
    if (resolved.count(name)) {
      complain(name, "a table", "a value: " + name + " is a key");
      errors.back().place = place;
      continue;
    }
    const std::vector<std::string> sections_list(known_sections.begin(), known_sections.end());
    const std::string meant = nearest(name, sections_list);
    std::vector<std::string> top;
    for (const auto& section : sections_list)
      if (parent_of(section) == parent_of(name)) top.push_back(section);
    complain(name, "unknown section" + (meant.empty() ? "" : fmt::format(", did you mean {}?", meant)), listed(top));
    errors.back().place = place;
  }
  for (const auto& [name, value] : values) {
    if (resolved.count(name) || silenced(name)) continue;
    const std::string section = parent_of(name);
    if (const std::string kind = section + ".kind"; name.rfind(kind, 0) != 0 && (wrong.count(kind) || any_below(kind)))
      continue;  // the kind decides which keys there are
    std::vector<std::string> here, elsewhere;
    for (const auto& key : order) {
      if (parent_of(key) == section) here.push_back(last_of(key));
      if (last_of(key) == last_of(name)) elsewhere.push_back(key);
    }
    std::string meant = nearest(last_of(name), here);
    if (!meant.empty() && !section.empty()) meant = section + "." + meant;
    if (meant.empty() && !elsewhere.empty()) meant = elsewhere.front();
    if (meant.empty()) meant = nearest(name, order);
    complain(name, "unknown key" + (meant.empty() ? "" : fmt::format(", did you mean {}?", meant)), listed(here));
  }
}

}  // namespace sestina
