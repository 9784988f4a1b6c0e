#include "core/deck/deck.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "core/deck/deck_state.hpp"

namespace sestina {
namespace {

using Kind = DeckValue::Kind;
constexpr std::size_t max_errors = 100;  // errors that are printed

std::string range_text(const DeckRange& range) {
  std::string text;
  if (range.min) text += fmt::format("{} {}", range.open_min ? ">" : ">=", *range.min);
  if (range.max) text += fmt::format("{}{} {}", text.empty() ? "" : " and ", range.open_max ? "<" : "<=", *range.max);
  return text.empty() ? "any finite number" : text;
}

bool inside(const DeckRange& range, double value) {
  if (range.min && (range.open_min ? value <= *range.min : value < *range.min)) return false;
  return !(range.max && (range.open_max ? value >= *range.max : value > *range.max));
}

// Returns the text of a value for a key that is a string: bare text of the command line counts.
std::optional<std::string> text_of(const DeckValue& value) {
  if (value.kind == Kind::text) return value.text;
  if (value.from_command_line && !value.raw.empty()) return value.raw;
  return std::nullopt;
}

std::string quoted(const std::vector<std::string>& words) {
  std::vector<std::string> quoted_words;
  for (const auto& word : words) quoted_words.push_back(toml_text(word));
  return fmt::format("{}", fmt::join(quoted_words, ", "));
}

std::string absolute(const std::string& folder, const std::string& path) {
  if (path.empty()) return path;
  return (std::filesystem::absolute(folder.empty() ? "." : folder) / path).lexically_normal().string();
}

}  // namespace

std::optional<double> parse_duration(std::string_view text) {
  double part[3];
  for (int i = 0; i < 3; ++i) {
    const auto colon = i < 2 ? text.find(':') : text.size();
    unsigned value = 0;
    const char* end = text.data() + std::min(colon, text.size());
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (colon == text.npos || colon == 0 || error != std::errc() || stopped != end || (i > 0 && value > 59))
      return std::nullopt;
    part[i] = value;
    text.remove_prefix(std::min(colon + 1, text.size()));
  }
  return 3600 * part[0] + 60 * part[1] + part[2];
}

Deck::Deck() : state_(std::make_unique<State>()) {}
Deck::~Deck() = default;
Deck::Deck(Deck&&) noexcept = default;

DeckFile::DeckFile(const std::string& path) : path_(path) {
  std::error_code ignored;  // a pipe is not waited for
  if (!std::filesystem::is_regular_file(path, ignored))
    fail(ExitCode::input_missing, "{}: the deck cannot be opened: {}", path,
         std::filesystem::exists(path, ignored) ? "not a regular file" : "no such file");
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ExitCode::input_missing, "{}: the deck cannot be opened", path);
  constexpr auto one_more_than_allowed =
      static_cast<std::streamsize>(max_deck_bytes) + 1;  // a larger file is refused and need not be read whole
  std::string text(static_cast<std::size_t>(one_more_than_allowed), '\0');
  file.read(text.data(), one_more_than_allowed);
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (file.bad()) fail(ExitCode::input_missing, "{}: the deck cannot be read", path);
  DeckLayer layer = parse_deck_text(text, path, std::filesystem::path(path).parent_path().string());
  for (auto& [key, value] : layer.values) value.from_file = true;
  layer_ = std::make_shared<const DeckLayer>(std::move(layer));
}

void Deck::add(const DeckFile& file) {
  state_->main_where = file.path_;
  state_->merge(DeckLayer(*file.layer_));
}

bool Deck::from_file(std::string_view key) const {
  const DeckValue* value = state_->find(key);
  return value != nullptr && value->from_file;
}

std::string Deck::resolve(std::string_view key, const std::string& text) {
  state_->record(key, toml_text(text));
  return text;
}

std::string Deck::given(std::string_view key) const {
  const DeckValue* value = state_->find(key);
  return value == nullptr ? "" : toml_text(*value);
}

void Deck::underlay(const std::string& key, const std::string& toml, const std::string& where) {
  for (std::size_t end = key.size(); end != key.npos && end > 0; end = key.rfind('.', end - 1))
    if (state_->find(key.substr(0, end)) != nullptr) return;  // its own value, or one in the place of its section
  if (state_->any_below(key)) return;
  const auto dot = key.rfind('.');
  DeckLayer layer =
      parse_deck_text(fmt::format("[{}]\n{} = {}\n", key.substr(0, dot), key.substr(dot + 1), toml), where, "");
  SESTINA_REQUIRE(!layer.broken && dot != key.npos, "{}: {} = {}", where, key, toml);
  for (auto& [name, value] : layer.values) value.place = {where, "", 0, 0};
  std::erase_if(layer.tables, [&](const auto& table) { return state_->tables.count(table.first) > 0; });
  state_->merge(std::move(layer));
}

void Deck::replace_section(const std::string& section, const std::string& key, const std::string& text) {
  state_->erase_below(section);
  state_->merge(parse_deck_text(fmt::format("[{}]\n{} = {}\n", section, key, toml_text(text)), "command line", ""));
}

void Deck::record_keys(const std::string& key, const std::vector<std::pair<std::string, std::string>>& keys) {
  auto& order = state_->order;
  const auto at = std::find(order.begin(), order.end(), key);
  std::vector<std::string> names;
  for (const auto& [name, toml] : keys)
    if (state_->resolved.insert_or_assign(name, toml).second) names.push_back(name);
  order.insert(at == order.end() ? at : order.erase(at), names.begin(), names.end());
  state_->resolved.erase(key);
}

void Deck::forget(const std::string& key) {
  state_->erase_below(key);
  state_->values.erase(key);
  state_->arrays.erase(key);
  state_->tables.erase(key);
}

void Deck::add_text(const std::string& toml, const std::string& where, const std::string& folder) {
  state_->main_where = where;
  state_->merge(parse_deck_text(toml, where, folder));
}

void Deck::add_override(const std::string& assignment) { state_->merge(parse_deck_override(assignment)); }

std::int64_t Deck::integer(std::string_view key, std::int64_t fallback, DeckRange range) {
  std::int64_t result = fallback;
  if (const DeckValue* value = state_->find(key)) {
    if (value->kind != Kind::integer)
      state_->wrong_type(key, *value, "an integer " + range_text(range));
    else if (!inside(range, static_cast<double>(value->integer)))
      state_->complain(key, "out of range", "an integer " + range_text(range));
    else
      result = value->integer;
  }
  state_->record(key, toml_text(result));
  return result;
}

std::optional<std::int64_t> Deck::integer_or(std::string_view key, std::string_view word, std::int64_t fallback,
                                             DeckRange range) {
  const DeckValue* value = state_->find(key);
  if (value == nullptr || value->kind != Kind::text) return integer(key, fallback, range);
  if (value->text == word) {
    state_->record(key, toml_text(std::string(word)));
    return std::nullopt;
  }
  state_->complain(key, "unknown value", fmt::format("an integer {} or \"{}\"", range_text(range), word));
  state_->record(key, toml_text(fallback));
  return fallback;
}

double Deck::number(std::string_view key, double fallback, DeckRange range) {
  const double result = maybe_number(key, range).value_or(fallback);
  state_->record(key, toml_text(result));
  return result;
}

std::optional<double> Deck::maybe_number(std::string_view key, DeckRange range) {
  std::optional<double> result;
  if (const DeckValue* value = state_->find(key)) {
    const double number = value->kind == Kind::integer ? static_cast<double>(value->integer) : value->number;
    if (value->kind != Kind::integer && value->kind != Kind::number)
      state_->wrong_type(key, *value, "a number " + range_text(range));
    else if (!std::isfinite(number))
      state_->complain(key, "not a finite number", range_text(range));
    else if (!inside(range, number))
      state_->complain(key, "out of range", range_text(range));
    else
      result = number;
  }
  state_->record(key, result ? toml_text(*result) : "");
  return result;
}

bool Deck::boolean(std::string_view key, bool fallback) {
  bool result = fallback;
  if (const DeckValue* value = state_->find(key)) {
    if (value->kind == Kind::boolean)
      result = value->boolean;
    else
      state_->wrong_type(key, *value, "true, false");
  }
  state_->record(key, toml_text(result));
  return result;
}

std::optional<std::string> Deck::maybe_text(std::string_view key) {
  std::optional<std::string> result;
  if (const DeckValue* value = state_->find(key)) {
    result = text_of(*value);
    if (!result) state_->wrong_type(key, *value, "a string");
  }
  state_->record(key, result ? toml_text(*result) : "");
  return result;
}

std::string Deck::text(std::string_view key, const std::string& fallback) {
  const std::string result = maybe_text(key).value_or(fallback);
  state_->record(key, toml_text(result));
  return result;
}

std::string Deck::choice(std::string_view key, const std::string& fallback, const std::vector<std::string>& allowed) {
  std::string result = text(key, fallback);
  if (state_->find(key) && std::find(allowed.begin(), allowed.end(), result) == allowed.end()) {
    const std::string meant = nearest(result, allowed);
    if (!state_->complained.count(std::string(key)))
      state_->complain(key,
                       "unknown value" + (meant.empty() ? "" : fmt::format(", did you mean {}?", toml_text(meant))),
                       quoted(allowed));
    result = fallback;
    state_->record(key, toml_text(result));
  }
  return result;
}

std::vector<std::string> Deck::texts(std::string_view key, const std::vector<std::string>& fallback) {
  std::vector<std::string> result = fallback;
  if (const DeckValue* value = state_->find(key)) {
    const auto is_text = [](const DeckValue& item) { return item.kind == Kind::text; };
    if (value->kind == Kind::array && std::all_of(value->items.begin(), value->items.end(), is_text)) {
      result.clear();
      for (const auto& item : value->items) result.push_back(item.text);
    } else {
      state_->wrong_type(key, *value, "an array of strings");
    }
  }
  state_->record(key, toml_text(result));
  return result;
}

std::vector<std::int64_t> Deck::integers(std::string_view key, DeckRange range) {
  std::vector<std::int64_t> result;
  std::string text;
  if (const DeckValue* value = state_->find(key)) {
    const auto is_integer = [](const DeckValue& item) { return item.kind == Kind::integer; };
    const auto is_inside = [&](const DeckValue& item) { return inside(range, static_cast<double>(item.integer)); };
    if (value->kind != Kind::array || !std::all_of(value->items.begin(), value->items.end(), is_integer))
      state_->wrong_type(key, *value, "an array of integers " + range_text(range));
    else if (!std::all_of(value->items.begin(), value->items.end(), is_inside))
      state_->complain(key, "out of range", "an array of integers " + range_text(range));
    else
      for (const auto& item : value->items) result.push_back(item.integer);
  }
  for (const std::int64_t value : result) text += (text.empty() ? "" : ", ") + toml_text(value);
  state_->record(key, fmt::format("[{}]", text));
  return result;
}

std::vector<std::vector<double>> Deck::number_rows(std::string_view key, std::size_t width) {
  std::vector<std::vector<double>> result;
  std::string text;
  if (const DeckValue* value = state_->find(key)) {
    const auto is_number = [](const DeckValue& item) {
      return item.kind == Kind::integer || (item.kind == Kind::number && std::isfinite(item.number));
    };
    const auto is_row = [&](const DeckValue& item) {
      return item.kind == Kind::array && item.items.size() == width &&
             std::all_of(item.items.begin(), item.items.end(), is_number);
    };
    if (value->kind != Kind::array || !std::all_of(value->items.begin(), value->items.end(), is_row)) {
      state_->wrong_type(key, *value, fmt::format("an array of arrays of {} numbers", width));
    } else {
      for (const DeckValue& row : value->items) {
        std::vector<double>& numbers = result.emplace_back();
        for (const DeckValue& item : row.items)
          numbers.push_back(item.kind == Kind::integer ? static_cast<double>(item.integer) : item.number);
      }
    }
  }
  for (const std::vector<double>& row : result) {
    std::string numbers;
    for (const double value : row) numbers += (numbers.empty() ? "" : ", ") + toml_text(value);
    text += fmt::format("{}[{}]", text.empty() ? "" : ", ", numbers);
  }
  state_->record(key, fmt::format("[{}]", text));
  return result;
}

bool Deck::has(std::string_view key) const { return state_->find(key) != nullptr || state_->any_below(key); }

bool Deck::has_table(std::string_view key) const { return state_->find(key) == nullptr && state_->any_below(key); }

void Deck::require(std::string_view key, const std::string& why) {
  if (!has(key)) state_->complain(key, "required: " + why, "");
}

double Deck::duration(std::string_view key, double fallback) {
  double result = fallback;
  if (const DeckValue* value = state_->find(key)) {
    std::optional<double> seconds;
    if (value->kind == Kind::integer) seconds = static_cast<double>(value->integer);
    if (value->kind == Kind::number) seconds = value->number;
    if (value->kind == Kind::text || value->kind == Kind::time) seconds = parse_duration(value->text);
    if (seconds && std::isfinite(*seconds) && *seconds >= 0)
      result = *seconds;
    else
      state_->complain(key, "not a duration", "seconds >= 0 or \"hh:mm:ss\"");
  }
  state_->record(key, toml_text(result));
  return result;
}

std::string Deck::path(std::string_view key, const std::string& fallback) {
  const DeckValue* value = state_->find(key);
  const std::string result = absolute(value ? value->place.folder : "", text(key, fallback));
  state_->record(key, toml_text(result));
  return result;
}

std::size_t Deck::table_count(std::string_view key) const {
  const std::string name(key);
  state_->sections.insert(name);
  if (const auto found = state_->arrays.find(name); found != state_->arrays.end()) return found->second;
  const DeckValue* value = state_->find(key);
  const bool empty_array = value && value->kind == Kind::array && value->items.empty();
  if (empty_array)
    state_->record(key, "");
  else if (has(key) && !state_->complained.count(name))
    state_->complain(key, "not an array of tables", fmt::format("[[{}]] with one table for each entry", name));
  return 0;
}

void Deck::error(std::string_view key, const std::string& what, const std::string& allowed) {
  state_->conclude(key, what, allowed);
}

void Deck::finish() {
  state_->complain_about_unread();
  state_->tell_conclusions();
  auto problems = state_->errors;
  if (!state_->broken) problems.insert(problems.end(), state_->absent.begin(), state_->absent.end());
  if (problems.empty()) return;
  std::stable_sort(problems.begin(), problems.end(), [](const DeckProblem& a, const DeckProblem& b) {
    return std::tie(a.place.where, a.place.line, a.place.column) <
           std::tie(b.place.where, b.place.line, b.place.column);
  });
  std::vector<std::string> lines;
  for (const auto& problem : problems) {
    std::string line = fmt::format("{}: {}", to_text(problem.place), problem.message);
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
    if (lines.size() > max_errors) break;
  }
  if (lines.size() > max_errors) lines.back() = fmt::format("and more: the first {} are shown", max_errors);
  if (lines.size() > 1) lines.insert(lines.begin(), "the deck is not valid:");
  throw Error(ExitCode::bad_deck, fmt::format("{}", fmt::join(lines, "\n")));
}

}  // namespace sestina
