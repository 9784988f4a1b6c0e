// Deck values as TOML text, and the nearest word for "did you mean".
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/deck/deck_state.hpp"

namespace sestina {

std::string toml_text(bool value) { return value ? "true" : "false"; }
std::string toml_text(std::int64_t value) { return fmt::format("{}", value); }

std::string toml_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);  // shortest text that reads back to the same double
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

std::string toml_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text += {'\\', c};
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      text += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
    } else {
      text += c;
    }
  }
  text += '"';
  return text;
}

std::string toml_text(const std::vector<std::string>& values) {
  std::string text;
  for (const auto& value : values) text += (text.empty() ? "" : ", ") + toml_text(value);
  return fmt::format("[{}]", text);
}

std::string toml_text(const DeckValue& value) {
  using Kind = DeckValue::Kind;
  switch (value.kind) {
    case Kind::boolean:
      return toml_text(value.boolean);
    case Kind::integer:
      return toml_text(value.integer);
    case Kind::number:
      return toml_text(value.number);
    case Kind::text:
      return toml_text(value.text);
    case Kind::time:
    case Kind::other:
      return value.text;
    case Kind::array:
      break;
  }
  std::string text;
  for (const auto& item : value.items) text += (text.empty() ? "" : ", ") + toml_text(item);
  return fmt::format("[{}]", text);
}

std::string to_text(const DeckPlace& place) {
  return place.line == 0 ? place.where : fmt::format("{}:{}:{}", place.where, place.line, place.column);
}

// Returns the distance of optimal string alignment: insertions, deletions, substitutions and swaps of neighbours cost
// one each.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t longest_word = 64;
  if (word.size() > longest_word) return "";
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace sestina
