#include "core/deck/kinds.hpp"

#include <algorithm>
#include <utility>

#include "core/deck/element_rule.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace {

constexpr const char* name_letters = "abcdefghijklmnopqrstuvwxyz0123456789-";

std::vector<MatrixKind>& table() {
  static std::vector<MatrixKind> kinds;
  return kinds;
}

// Lists the keys with their values.
class ListKeys final : public OptionFields {
 public:
  using Type = KindKey::Type;
  std::vector<KindKey> keys;
  void number(const char* key, double& value, DeckRange) override { keys.push_back({key, Type::number, value}); }
  void integer(const char* key, std::int64_t& value, DeckRange) override {
    keys.push_back({key, Type::integer, static_cast<double>(value)});
  }
  void flag(const char* key, bool& value) override { keys.push_back({key, Type::flag, value ? 1.0 : 0.0}); }
  void word(const char* key, std::string& value, const std::vector<std::string>& choices) override {
    keys.push_back({key, Type::word, 0, choices, value});
  }
  void triples(const char* key, std::vector<std::array<double, 3>>& value) override {
    std::string text;
    for (const auto& [a, b, c] : value) text += fmt::format("{}[{}, {}, {}]", text.empty() ? "" : ", ", a, b, c);
    keys.push_back({key, Type::triples, 0, {}, "[" + text + "]"});
  }
};

// Reads the keys from [optimizer].
class ReadKeys final : public OptionFields {
 public:
  explicit ReadKeys(Deck& deck) : deck_(deck) {}
  void number(const char* key, double& value, DeckRange range) override { value = deck_.number(at(key), value, range); }
  void integer(const char* key, std::int64_t& value, DeckRange range) override {
    value = deck_.integer(at(key), value, range);
  }
  void flag(const char* key, bool& value) override { value = deck_.boolean(at(key), value); }
  void word(const char* key, std::string& value, const std::vector<std::string>& choices) override {
    value = deck_.choice(at(key), value, choices);
  }
  void triples(const char* key, std::vector<std::array<double, 3>>& value) override {
    for (const std::vector<double>& row : deck_.number_rows(at(key), 3)) value.push_back({row[0], row[1], row[2]});
  }

 private:
  static std::string at(const char* key) { return std::string("optimizer.") + key; }
  Deck& deck_;
};

// Sets one key by its name.
class SetKey final : public OptionFields {
 public:
  SetKey(std::string_view key, double value) : key_(key), value_(value) {}
  SetKey(std::string_view key, std::string word) : key_(key), word_(std::move(word)), is_word_(true) {}
  bool done = false;
  void number(const char* key, double& value, DeckRange) override {
    if (takes(key, false)) value = value_;
  }
  void integer(const char* key, std::int64_t& value, DeckRange) override {
    if (takes(key, false)) value = static_cast<std::int64_t>(value_);
  }
  void flag(const char* key, bool& value) override {
    if (takes(key, false)) value = value_ != 0;
  }
  void word(const char* key, std::string& value, const std::vector<std::string>& choices) override {
    if (std::find(choices.begin(), choices.end(), word_) != choices.end() && takes(key, true)) value = word_;
  }
  void triples(const char*, std::vector<std::array<double, 3>>&) override {}  // no golden file sets them

 private:
  bool takes(const char* key, bool word) {
    const bool is_it = key_ == key && word == is_word_;
    done = done || is_it;
    return is_it;
  }
  std::string_view key_;
  double value_ = 0;
  std::string word_;
  bool is_word_ = false;
};

void set_key(MatrixOptions& options, std::string_view key, SetKey setter) {
  const MatrixKind* kind = find_matrix_kind(options.kind);
  SESTINA_REQUIRE(kind != nullptr, "no matrix optimizer \"{}\"", options.kind);
  kind->fields(options.keys, setter);
  SESTINA_REQUIRE(setter.done, "optimizer \"{}\" has no key \"{}\" with such a value", options.kind, key);
}

std::string word_of(const MatrixOptions& options, std::string_view name, const char* otherwise) {
  for (const KindKey& key : keys_of(options))
    if (key.name == name) return key.word;
  return otherwise;
}

}  // namespace

std::string matmul_precision(const MatrixOptions& options) { return word_of(options, "matmul_precision", "fp32"); }
std::string ns_precision(const MatrixOptions& options) { return word_of(options, "ns_precision", "auto"); }

std::vector<KindKey> keys_of(const MatrixOptions& options) {
  const MatrixKind* kind = find_matrix_kind(options.kind);
  SESTINA_REQUIRE(kind != nullptr, "no matrix optimizer \"{}\"", options.kind);
  std::any keys = options.keys;
  ListKeys list;
  kind->fields(keys, list);
  return list.keys;
}

bool MatrixOptions::has(std::string_view key) const {
  const std::vector<KindKey> all = keys_of(*this);
  return std::any_of(all.begin(), all.end(), [key](const KindKey& own) { return own.name == key; });
}
void MatrixOptions::set(std::string_view key, double value) { set_key(*this, key, SetKey(key, value)); }
void MatrixOptions::set(std::string_view key, const std::string& word) { set_key(*this, key, SetKey(key, word)); }

Tier MatrixOptions::tier_of(std::string_view field) const {
  const auto named = field_tiers.find(field_of_block(field));
  return named == field_tiers.end() ? tier : named->second;
}

// Returns whether some field has the tier: a table of tiers names all fields, else there is one tier for all.
bool MatrixOptions::has_tier(Tier asked) const {
  if (field_tiers.empty()) return tier == asked;
  return std::any_of(field_tiers.begin(), field_tiers.end(),
                     [asked](const auto& field) { return field.second == asked; });
}

std::string snapshot_of(std::string_view result) {
  for (const std::string_view side : {"_left", "_right"})
    if (result.ends_with(side)) return "snapshot" + std::string(side);
  return "snapshot";
}

// Asks for both shapes, since a method of one side takes the shorter side.
std::vector<std::string> paged_fields(const MatrixKind& kind, const MatrixOptions& options) {
  std::vector<std::string> names;
  for (const std::int64_t rows : {2, 3})
    for (const FieldSize& field : kind.state(options, rows, 5 - rows)) {
      std::string name(field_of_block(field.name));
      const bool known = std::find(names.begin(), names.end(), name) != names.end();
      if (field.use != FieldUse::always && !known) names.push_back(std::move(name));
    }
  return names;
}

void add_coded_fields(std::vector<FieldSize>& fields, const std::string& name, std::int64_t rows, std::int64_t cols,
                      std::int64_t block) {
  fields.push_back({name + "_codes", DType::u8, rows, cols});
  fields.push_back({name + "_scales", DType::f32, rows, (cols + block - 1) / block});
}

void set_of_basis(std::vector<FieldSize>& fields, std::initializer_list<std::string_view> names) {
  for (FieldSize& field : fields)
    if (std::find(names.begin(), names.end(), field_of_block(field.name)) != names.end()) field.of_basis = true;
}

const std::vector<MatrixKind>& matrix_kinds() { return table(); }

void add_matrix_kind(MatrixKind kind) {
  const bool legal = !kind.name.empty() && kind.name.find_first_not_of(name_letters) == std::string::npos;
  SESTINA_REQUIRE(legal, "optimizer \"{}\": not a valid name; expected lower-case letters, digits and \"-\"",
                  kind.name);
  SESTINA_REQUIRE(!find_element_rule(kind.name) && !find_matrix_kind(kind.name),
                  "optimizer \"{}\" is already registered", kind.name);
  SESTINA_REQUIRE(kind.fields != nullptr && kind.state != nullptr,
                  "optimizer \"{}\" does not declare its keys and its state", kind.name);
  table().push_back(std::move(kind));
}

const MatrixKind* find_matrix_kind(std::string_view name) {
  for (const MatrixKind& kind : matrix_kinds())
    if (kind.name == name) return &kind;
  return nullptr;
}

std::vector<std::string> shardable_kinds() {
  std::vector<std::string> names;
  for (const MatrixKind& kind : matrix_kinds())
    if (kind.shard_work) names.push_back(kind.name);
  return names;
}

double refresh_flops(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const MatrixKind* kind = find_matrix_kind(options.kind);
  return kind && kind->work ? kind->work(options, rows, cols).refresh : 0;
}

RefreshNeeds refresh_needs(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  const MatrixKind* kind = find_matrix_kind(options.kind);
  SESTINA_REQUIRE(kind != nullptr && kind->refresh_needs != nullptr, "optimizer \"{}\" has no refreshes for workers",
                  options.kind);
  return kind->refresh_needs(options, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols));
}

MatrixOptions default_options(const MatrixKind& kind) {
  MatrixOptions options;
  options.kind = kind.name;
  options.keys = kind.defaults;
  options.refresh_every = kind.refresh_every > 0 ? kind.refresh_every : 1;
  return options;
}

namespace {

constexpr const char *every_key = "optimizer.refresh.every", *drift_bound_key = "optimizer.refresh.drift_bound",
                     *drift_check_key = "optimizer.refresh.drift_check";

// Returns whether what it refreshes are bases of its factors alone.
bool refreshes_bases_alone(const MatrixKind& kind, const MatrixOptions& options) {
  bool bases = false, others = false;
  for (const FieldSize& field : kind.state(options, 2, 3)) {
    if (field.use != FieldUse::result) continue;
    const bool is_basis = field_of_block(field.name).starts_with("basis_");
    bases = bases || is_basis;
    others = others || !is_basis;
  }
  return bases && !others;
}

// Reads when refreshes come by drift. The time between checks is the shortest period that there can be, which stands
// for that of refreshes in estimates.
void read_drift(Deck& deck, const MatrixKind& kind, MatrixOptions& options) {
  constexpr double usual_bound = 0.2;
  constexpr std::int64_t usual_check = 10;
  deck.text(every_key, "");
  options.refresh_drift = deck.number(drift_bound_key, usual_bound, {.min = 0, .max = 1, .open_min = true});
  options.refresh_every = deck.integer(drift_check_key, usual_check, {.min = 1});
  if (refreshes_bases_alone(kind, options)) return;
  deck.error(every_key,
             "kind = \"" + kind.name + "\" refreshes roots or projectors: how far a basis has drifted says too little",
             "an integer >= 1");
}

void read_period(Deck& deck, const MatrixKind& kind, MatrixOptions& options) {
  const std::string given = deck.given(every_key);
  if (given == "\"drift\"") return read_drift(deck, kind, options);
  for (const char* key : {drift_bound_key, drift_check_key})
    if (deck.has(key)) deck.error(key, "needs optimizer.refresh.every = \"drift\"", "no such key with another period");
  if (given.starts_with('"') && given != "\"auto\"") {
    deck.text(every_key, "");
    return deck.error(every_key, "unknown value", "an integer >= 1, \"auto\" or \"drift\"");
  }
  options.refresh_every =
      deck.integer_or(every_key, "auto", kind.refresh_every, {.min = 1}).value_or(kind.refresh_every);
}

}  // namespace

MatrixOptions read_matrix_options(Deck& deck, const MatrixKind& kind) {
  MatrixOptions options = default_options(kind);
  ReadKeys reader(deck);
  kind.fields(options.keys, reader);
  if (kind.refresh_every > 0) read_period(deck, kind, options);
  return options;
}

}  // namespace sestina
