// The checks of a deck's bytes before the TOML parser sees them.
#include <algorithm>
#include <optional>

#include "core/deck/deck_state.hpp"

namespace sestina {
namespace {

constexpr std::size_t max_dots = 1000;  // per line: dotted keys nest, and nesting costs stack

DeckProblem located(const std::string& where, std::size_t line, std::size_t column, std::string what) {
  return {{where, "", static_cast<std::uint32_t>(line), static_cast<std::uint32_t>(column)}, std::move(what)};
}

// Returns the length of the UTF-8 sequence at the front, 0 when it is none (RFC 3629: no surrogates, nothing overlong).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && second < 0xA0, surrogate = first == 0xED && second > 0x9F;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  const bool in_range =
      (first == 0xF0 && second >= 0x90) || (first > 0xF0 && first < 0xF4) || (first == 0xF4 && second <= 0x8F);
  return in_range && follows(1) && follows(2) && follows(3) ? 4 : 0;
}

// Walks over TOML's strings and comments, line by line; knows what lies outside of both.
class StringScanner {
 public:
  // Returns the place of the first byte of the line that is not ASCII and outside of strings and comments.
  std::optional<std::size_t> scan(std::string_view line) {
    std::optional<std::size_t> found;
    for (std::size_t i = 0; i < line.size();) {
      if (quote_ != '\0') {
        i += inside(line.substr(i));
        continue;
      }
      if (line[i] == '#') break;
      if (line[i] == '"' || line[i] == '\'') {
        quote_ = line[i];
        multi_line_ = line.substr(i, 3) == std::string(3, quote_);
        i += multi_line_ ? 3 : 1;
        continue;
      }
      if (static_cast<unsigned char>(line[i]) >= 0x80 && !found) found = i;
      ++i;
    }
    if (!multi_line_) quote_ = '\0';  // a string of one line ends with it at the latest
    return found;
  }

 private:
  // Returns the length of one character of a string, or of its end, which it notes.
  std::size_t inside(std::string_view rest) {
    if (quote_ == '"' && rest[0] == '\\') return 2;
    const std::size_t quotes = std::min(rest.find_first_not_of(quote_), rest.size());
    if (quotes < (multi_line_ ? 3u : 1u)) return std::max<std::size_t>(quotes, 1);
    const std::size_t length = multi_line_ ? std::min<std::size_t>(quotes, 5) : 1;  // up to two may belong to the text
    quote_ = '\0';
    multi_line_ = false;
    return length;
  }

  char quote_ = '\0';
  bool multi_line_ = false;
};

// Returns the column in characters, as the parser counts.
std::size_t column_of(std::string_view line, std::size_t byte) {
  std::size_t column = 1;
  for (std::size_t i = 0; i < byte; i += std::max<std::size_t>(utf8_length(line.substr(i)), 1)) ++column;
  return column;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::optional<DeckProblem> check_deck_bytes(std::string_view text, const std::string& where) {
  if (text.size() > max_deck_bytes)
    return located(where, 1, 1,
                   fmt::format("the deck is too large, got {} bytes, allowed at most {}", text.size(), max_deck_bytes));
  if (text.substr(0, 3) == "\xEF\xBB\xBF")
    return located(where, 1, 1, "byte-order mark, allowed UTF-8 without one: save the file without it");
  return std::nullopt;
}

std::optional<DeckProblem> check_deck_line(std::string_view line, std::size_t number, const std::string& where) {
  std::size_t column = 1;
  for (std::size_t i = 0; i < line.size(); ++column) {
    const auto c = static_cast<unsigned char>(line[i]);
    if (c == '\r')
      return located(where, number, column,
                     "carriage return, allowed line ends are LF alone: convert with `sed -i 's/\\r$//'`");
    if ((c < 0x20 && c != '\t') || c == 0x7F)
      return located(where, number, column,
                     fmt::format("control character 0x{:02X}, allowed as an escape in a string alone", c));
    const std::size_t length = utf8_length(line.substr(i));
    if (length == 0) return located(where, number, column, fmt::format("byte 0x{:02X} is not UTF-8", c));
    i += length;
  }
  if (static_cast<std::size_t>(std::count(line.begin(), line.end(), '.')) > max_dots)
    return located(where, number, 1, fmt::format("more than {} dots in one line", max_dots));
  return std::nullopt;
}

std::optional<DeckProblem> check_deck_outside_strings(const std::vector<std::string>& lines, const std::string& where) {
  StringScanner scanner;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (const auto at = scanner.scan(lines[i]))
      return located(where, i + 1, column_of(lines[i], *at),
                     "character that is not ASCII, allowed in strings and comments alone");
  }
  return std::nullopt;
}

}  // namespace sestina
