// The inside of the deck: values as flat dotted keys ("data.source.0.path"), each with the place it came from. No
// Kokkos.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/deck/deck.hpp"

namespace sestina {

struct DeckPlace {
  std::string where, folder;           // file or "command line"; folder that relative paths start from
  std::uint32_t line = 0, column = 0;  // from 1; 0 = none
};

struct DeckValue {
  enum class Kind { boolean, integer, number, text, time, array, other } kind = Kind::other;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;              // text; for time and other: as written
  std::vector<DeckValue> items;  // array
  std::string raw;               // command line: the bare text, for keys that are strings
  bool from_command_line = false, from_file = false;
  DeckPlace place;
};

struct DeckProblem {
  DeckPlace place;
  std::string message;
};

// One layer as it was read. broken: the syntax is wrong somewhere, so that absent keys mean nothing.
struct DeckLayer {
  std::vector<std::pair<std::string, DeckValue>> values;
  std::vector<std::pair<std::string, std::size_t>> arrays;      // arrays of tables and their lengths, in the order met
  std::vector<std::pair<std::string, DeckPlace>> tables;        // every table that is written out, but for
  std::vector<std::pair<std::string, DeckPlace>> empty_tables;  // {}, which would set nothing without a word
  std::vector<DeckProblem> errors;
  bool broken = false;
};
DeckLayer parse_deck_text(std::string_view toml, const std::string& where, const std::string& folder);
DeckLayer parse_deck_override(const std::string& assignment);

// These checks come before the parser, which takes much for granted: size and byte-order mark; one line (UTF-8, control
// characters, depth of dotted keys); non-ASCII outside of strings and comments, which toml++ 3.3 does not survive.
inline constexpr std::size_t max_deck_bytes = 1 << 20;  // a deck is written by hand
std::optional<DeckProblem> check_deck_bytes(std::string_view text, const std::string& where);
std::optional<DeckProblem> check_deck_line(std::string_view line, std::size_t number, const std::string& where);
std::optional<DeckProblem> check_deck_outside_strings(const std::vector<std::string>& lines, const std::string& where);
bool is_utf8(std::string_view text);

// Returns the TOML text of one value; numbers round-trip.
std::string toml_text(const DeckValue&);
std::string toml_text(bool);
std::string toml_text(std::int64_t);
std::string toml_text(double);
std::string toml_text(const std::string&);
std::string toml_text(const std::vector<std::string>&);

std::string to_text(const DeckPlace&);  // "file:line:column"

struct Deck::State {
  std::map<std::string, DeckValue> values;
  std::map<std::string, std::size_t> arrays;
  std::map<std::string, DeckPlace> tables;
  std::string main_where = "deck";              // the newest file, for errors about absent keys
  std::vector<std::string> order;               // keys in the order they were first read
  std::map<std::string, std::string> resolved;  // key -> TOML text; "" = read, but not set
  std::vector<DeckProblem> errors, absent;      // `absent`: about keys that are not there; dropped when broken
  std::set<std::string> sections;               // arrays of tables that were asked for
  std::set<std::string> complained;             // keys with an error: nothing beneath is reported again
  std::set<std::string> wrong;                  // keys whose own value, or name, is wrong
  struct Conclusion {                           // an error that was drawn from values, of several keys perhaps
    std::string key;
    DeckProblem problem;
    bool absent = false;
  };
  std::vector<Conclusion> conclusions;
  bool broken = false;

  void merge(DeckLayer&&);
  void erase_below(const std::string& key);    // every value, table and array beneath the key
  bool any_below(std::string_view key) const;  // a value, table or array beneath the key
  const DeckValue* find(std::string_view key) const;
  void record(std::string_view key, std::string toml);
  DeckProblem problem(std::string_view key, const std::string& what, const std::string& allowed) const;
  void complain(std::string_view key, const std::string& what, const std::string& allowed);
  void wrong_type(std::string_view key, const DeckValue&, const std::string& expected);
  // Collects an error that may be no more than the consequence of a wrong value: it is told only where finish() knows
  // of no wrong value that it could follow from, in its section or by the name of the key.
  void conclude(std::string_view key, const std::string& what, const std::string& allowed);
  void tell_conclusions();
  void complain_about_unread();
};

}  // namespace sestina
