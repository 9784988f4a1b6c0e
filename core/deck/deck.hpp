// A deck: TOML with strict, typed, recorded access. Reading a key stores its resolved value, so dump() is the whole
// truth; keys that nobody read are errors with a suggestion. All errors are collected and thrown at once by finish().
// Later layers win: defaults < deck in a checkpoint < deck file < section.key=value. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"

namespace sestina {

// The numbers that a value may be; open ends exclude the limit itself.
struct DeckRange {
  std::optional<double> min = {}, max = {};
  bool open_min = false, open_max = false;
};
inline constexpr DeckRange positive{.min = 0, .open_min = true}, not_negative{.min = 0},
    below_one{.min = 0, .max = 1, .open_max = true};  // below_one: rates of moving averages, for example

struct DeckLayer;

// A deck file, read and parsed once: a verb lays several decks over each other, and a file that is written meanwhile
// gives one deck, not two.
class DeckFile {
 public:
  explicit DeckFile(const std::string& path);  // Error(input_missing) if it cannot be opened

 private:
  friend class Deck;
  std::string path_;
  std::shared_ptr<const DeckLayer> layer_;
};

class Deck {
 public:
  Deck();
  ~Deck();
  Deck(Deck&&) noexcept;

  // Adds a layer, in rising precedence. `where` names the source in messages. Syntax errors are collected too
  // (bad_deck).
  void add(const DeckFile&);
  void add_file(const std::string& path) { add(DeckFile(path)); }
  void add_text(const std::string& toml, const std::string& where, const std::string& folder);
  void add_override(const std::string& assignment);  // "section.key=value" or "section/key=value"

  // Each function reads "section.key" ("optimizer.scalar.lr") in its type. The default is recorded when the key is
  // absent.
  std::int64_t integer(std::string_view key, std::int64_t fallback, DeckRange = {});
  // Returns an integer, or nothing where the deck has this word.
  std::optional<std::int64_t> integer_or(std::string_view key, std::string_view word, std::int64_t fallback,
                                         DeckRange = {});
  double number(std::string_view key, double fallback, DeckRange = {});  // NaN and infinity are errors
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, const std::string& fallback);
  std::string choice(std::string_view key, const std::string& fallback, const std::vector<std::string>& allowed);
  std::vector<std::string> texts(std::string_view key, const std::vector<std::string>& fallback);
  std::vector<std::int64_t> integers(std::string_view key, DeckRange = {});  // absent: none
  // Returns an array of arrays of `width` numbers; absent: none.
  std::vector<std::vector<double>> number_rows(std::string_view key, std::size_t width);
  std::optional<double> maybe_number(std::string_view key, DeckRange = {});  // absent: empty
  std::optional<std::string> maybe_text(std::string_view key);
  bool has(std::string_view key) const;
  bool has_table(std::string_view key) const;  // whether it is a table, and no value
  bool from_file(std::string_view key) const;  // its value is a deck file's, no override and not stored in a checkpoint
  std::string resolve(std::string_view key, const std::string& text);  // another rule decides: the value that counts
  std::string given(std::string_view key) const;  // the value of the layers as TOML text, "" where there is none
  // Lays a value (TOML) below all layers: it counts where they have none. `where` names its source in messages.
  void underlay(const std::string& key, const std::string& toml, const std::string& where);
  // Replaces all that the layers say of the section by this key.
  void replace_section(const std::string& section, const std::string& key, const std::string& text);
  void record_keys(const std::string& key,  // records these keys (TOML) in the place of `key`
                   const std::vector<std::pair<std::string, std::string>>& keys);
  void forget(const std::string& key);                         // the key is as if no layer had set it
  void require(std::string_view key, const std::string& why);  // collects "required" if absent
  double duration(std::string_view key, double fallback);      // seconds, or "hh:mm:ss"
  std::string path(std::string_view key,
                   const std::string& fallback);        // relative to the folder of the layer that set it
  std::size_t table_count(std::string_view key) const;  // [[data.source]]: address entries as "data.source.0.path"

  // Collects an error about a key, and what it may be. An error that may follow from a wrong value already told is left
  // out.
  void error(std::string_view key, const std::string& what, const std::string& allowed);

  // Throws Error(bad_deck) with every collected error, one per line: "file:line:column: section.key: what, got X,
  // allowed Y". After a syntax error, errors about absent keys are left out. Also reports every key that nobody read
  // ("did you mean").
  void finish();

  std::string dump() const;  // resolved deck as TOML, round-trips through add_text to the same deck
  std::string resolved(std::string_view key) const;  // one resolved value as TOML text, "" when unknown
  std::vector<std::string> resolved_keys() const;    // all dotted keys that were read

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the seconds of "hh:mm:ss" (any number of hours); empty when the text is not of that form.
std::optional<double> parse_duration(std::string_view text);

// Returns the keys whose resolved values differ between two decks and that a resume may not change (error 65 in the
// trainer). inputs/README.md lists the keys that may change.
struct DeckDifference {
  std::string key, stored, now;
};
std::vector<DeckDifference> forbidden_changes(const Deck& stored, const Deck& now);

// Returns true for keys that the ranks of one run need not agree in: threads, and paths, which are those of a machine.
bool is_local_to_rank(std::string_view key);

// Words near to each other, for "did you mean".
std::size_t edit_distance(std::string_view a, std::string_view b);  // a swap of neighbours counts once
// Returns the candidate nearest to the word, or "" when none is near enough to be meant.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace sestina
