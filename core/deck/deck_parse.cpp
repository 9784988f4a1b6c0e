// Turns TOML text into flat keys (toml++). A wrong line is blanked and the rest read again, so that all errors are
// found at once.
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <sstream>

#include "core/deck/deck_state.hpp"

namespace sestina {
namespace {

constexpr int max_syntax_errors = 20;

template <class T>
std::string streamed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// Returns a key bare where TOML allows it, else quoted, so that a quoted dot never looks like a section.
std::string key_text(std::string_view key) {
  const auto bare = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; };
  const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), bare);
  return plain ? std::string(key) : toml_text(std::string(key));
}

class Flattener {
 public:
  Flattener(DeckLayer& layer, const std::string& where, const std::string& folder)
      : layer_(layer), where_(where), folder_(folder) {}

  void table(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string name = prefix.empty() ? key_text(key.str()) : prefix + "." + key_text(key.str());
      if (layer_.broken && name.rfind(skipped_section, 0) == 0) continue;
      if (const auto* inner = node.as_table(); inner && inner->is_inline() && inner->empty()) {
        layer_.empty_tables.emplace_back(name, place(node));
      } else if (inner) {
        layer_.tables.emplace_back(name, place(node));
        this->table(*inner, name);
      } else if (const auto* list = node.as_array(); list && !list->empty() && all_tables(*list)) {
        layer_.arrays.emplace_back(name, list->size());
        layer_.tables.emplace_back(name, place(node));
        for (std::size_t i = 0; i < list->size(); ++i)
          this->table(*(*list)[i].as_table(), fmt::format("{}.{}", name, i));
      } else {
        layer_.values.emplace_back(name, value(node));
      }
    }
  }

  static constexpr const char* skipped_section = "__broken";  // stands for a header that could not be read

 private:
  static bool all_tables(const toml::array& list) {
    return std::all_of(list.begin(), list.end(), [](const toml::node& item) { return item.is_table(); });
  }

  DeckPlace place(const toml::node& node) const {
    const auto begin = node.source().begin;
    return {where_, folder_, begin.line, begin.column};
  }

  DeckValue value(const toml::node& node) const {
    using Kind = DeckValue::Kind;
    DeckValue out;
    out.place = place(node);
    if (const auto* b = node.as_boolean()) {
      out.kind = Kind::boolean;
      out.boolean = b->get();
    } else if (const auto* i = node.as_integer()) {
      out.kind = Kind::integer;
      out.integer = i->get();
    } else if (const auto* d = node.as_floating_point()) {
      out.kind = Kind::number;
      out.number = d->get();
    } else if (const auto* s = node.as_string()) {
      out.kind = Kind::text;
      out.text = s->get();
    } else if (const auto* t = node.as_time()) {
      out.kind = Kind::time;
      out.text = streamed(t->get());
    } else if (const auto* list = node.as_array()) {
      out.kind = Kind::array;
      for (const auto& item : *list) out.items.push_back(value(item));
    } else {
      out.text = node.is_table() ? "{...}" : node.is_date() ? streamed(node.as_date()->get()) : "a date and time";
    }
    return out;
  }

  DeckLayer& layer_;
  const std::string& where_;
  const std::string& folder_;
};

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    lines.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Takes a wrong line out: a header becomes a section that is skipped, so that its keys do not land in the one before.
bool take_out(std::string& line, int number) {
  const auto first = line.find_first_not_of(" \t");
  if (first == line.npos || line.rfind(Flattener::skipped_section, 1) != line.npos) return false;
  line = line[first] == '[' ? fmt::format("[{}_{}]", Flattener::skipped_section, number) : std::string();
  return true;
}

}  // namespace

DeckLayer parse_deck_text(std::string_view toml, const std::string& where, const std::string& folder) {
  DeckLayer layer;
  const auto broken = [&](DeckProblem problem) {
    layer.errors.push_back(std::move(problem));
    layer.broken = true;
  };
  if (auto message = check_deck_bytes(toml, where)) {
    broken(*message);
    if (toml.size() > max_deck_bytes) return layer;
    toml.remove_prefix(3);
  }
  auto lines = lines_of(toml);
  bool carriage_return_told = false;  // it is told once
  int bad_lines = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool carriage_return = lines[i].ends_with('\r');
    if (carriage_return && !carriage_return_told) broken(*check_deck_line(lines[i], i + 1, where));
    if (carriage_return) {
      carriage_return_told = true;
      lines[i].pop_back();
    }
    const auto problem = check_deck_line(lines[i], i + 1, where);
    if (!problem) continue;
    if (++bad_lines <= max_syntax_errors) broken(*problem);
    take_out(lines[i], static_cast<int>(i));
  }
  for (int attempt = 0; attempt < max_syntax_errors; ++attempt) {
    if (auto problem = check_deck_outside_strings(lines, where)) {
      const std::size_t line = problem->place.line - 1;
      broken(std::move(*problem));
      take_out(lines[line], static_cast<int>(line));
      continue;
    }
    const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
    try {
      const toml::table table = toml::parse(text, where);
      Flattener(layer, where, folder).table(table, "");
      return layer;
    } catch (const toml::parse_error& error) {
      const auto begin = error.source().begin;
      broken({{where, "", begin.line, begin.column}, std::string(error.description())});
      if (begin.line == 0 || begin.line > lines.size() ||
          !take_out(lines[begin.line - 1], static_cast<int>(begin.line) - 1))
        return layer;
    }
  }
  return layer;
}

DeckLayer parse_deck_override(const std::string& assignment) {
  const std::string where = "command line";
  DeckLayer layer;
  const auto equal = assignment.find('=');
  std::string key = assignment.substr(0, equal);
  std::replace(key.begin(), key.end(), '/', '.');
  const auto good = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  };
  const bool dots_wrong = key.empty() || key.front() == '.' || key.back() == '.' || key.find("..") != key.npos;
  const bool too_deep = std::count(key.begin(), key.end(), '.') > 16;
  if (equal == assignment.npos || dots_wrong || too_deep || !std::all_of(key.begin(), key.end(), good)) {
    layer.errors.push_back(
        {{where, "", 0, 0}, fmt::format("not an override, got {}, allowed section.key=value", toml_text(assignment))});
    return layer;
  }
  const std::string raw = assignment.substr(equal + 1);
  if (!is_utf8(raw)) {
    layer.errors.push_back({{where, "", 0, 0}, fmt::format("{}: the value is not UTF-8", key)});
    return layer;
  }
  DeckLayer parsed = parse_deck_text("v = " + raw, where, "");
  const bool one_value =
      !parsed.broken && std::all_of(parsed.values.begin(), parsed.values.end(), [](const auto& value) {
        return value.first == "v" || value.first.rfind("v.", 0) == 0;
      });
  if (!one_value || (parsed.values.empty() && parsed.tables.empty() && parsed.empty_tables.empty())) {  // bare text
    parsed = {};
    DeckValue text;
    text.kind = DeckValue::Kind::text;
    text.text = raw;
    parsed.values.emplace_back("v", std::move(text));
  }
  const DeckPlace place{where, "", 0, 0};
  for (auto& [name, value] : parsed.values) {
    value.place = place;
    value.from_command_line = true;
    if (name == "v") value.raw = raw;
    layer.values.emplace_back(key + name.substr(1), std::move(value));
  }
  for (const auto& [name, count] : parsed.arrays) layer.arrays.emplace_back(key + name.substr(1), count);
  for (const auto& [name, unused] : parsed.tables) layer.tables.emplace_back(key + name.substr(1), place);
  for (const auto& [name, unused] : parsed.empty_tables) layer.empty_tables.emplace_back(key + name.substr(1), place);
  return layer;
}

}  // namespace sestina
