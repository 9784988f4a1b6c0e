#include "core/deck/kinds.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/error.hpp"

namespace sestina {

#define SESTINA_DECLARE_KIND(id) MatrixKind id##_kind();
SESTINA_MATRIX_KINDS(SESTINA_DECLARE_KIND)

namespace {

template <class Map>
const auto& find(const Map& map, const std::string& kind, std::string_view key) {
  const auto found = map.find(key);
  SESTINA_REQUIRE(found != map.end(), "optimizer \"{}\" has no key \"{}\"", kind, key);
  return found->second;
}

constexpr const char* name_letters = "abcdefghijklmnopqrstuvwxyz0123456789-";

// Ours, and what a program adds when it starts.
std::vector<MatrixKind>& table() {
#define SESTINA_LIST_KIND(id) id##_kind(),
  static std::vector<MatrixKind> kinds = {SESTINA_MATRIX_KINDS(SESTINA_LIST_KIND)};
  return kinds;
}

}  // namespace

double MatrixOptions::number(std::string_view key) const { return find(numbers, kind, key); }
const std::string& MatrixOptions::word(std::string_view key) const { return find(words, kind, key); }

Tier MatrixOptions::tier_of(std::string_view field) const {
  const auto named = field_tiers.find(field_of_block(field));
  return named == field_tiers.end() ? tier : named->second;
}

// A table names all fields that there are.
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

// A method of one side takes the shorter: both shapes are asked.
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

KindKey number_key(std::string name, double fallback, DeckRange range) {
  return {std::move(name), KindKey::Type::number, fallback, range};
}
KindKey eps_key(std::string name, double fallback) { return number_key(std::move(name), fallback, eps_range); }
KindKey integer_key(std::string name, std::int64_t fallback, DeckRange range) {
  return {std::move(name), KindKey::Type::integer, static_cast<double>(fallback), range};
}
KindKey flag_key(std::string name, bool fallback) {
  return {std::move(name), KindKey::Type::flag, fallback ? 1.0 : 0.0};
}
KindKey word_key(std::string name, std::vector<std::string> choices) {
  return {std::move(name), KindKey::Type::word, 0, {}, std::move(choices)};
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
  SESTINA_REQUIRE(kind.name != "adamw" && !find_matrix_kind(kind.name), "optimizer \"{}\" is already registered",
                  kind.name);
  SESTINA_REQUIRE(kind.state != nullptr, "optimizer \"{}\" does not declare its state", kind.name);
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
    if (kind.shardable) names.push_back(kind.name);
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
  options.refresh_every = kind.refresh_every > 0 ? kind.refresh_every : 1;
  for (const KindKey& key : kind.keys) {
    if (key.type == KindKey::Type::word)
      options.words[key.name] = key.choices.front();
    else
      options.numbers[key.name] = key.fallback;
  }
  return options;
}

MatrixOptions read_matrix_options(Deck& deck, const MatrixKind& kind) {
  MatrixOptions options = default_options(kind);
  for (const KindKey& key : kind.keys) {
    const std::string at = "optimizer." + key.name;
    switch (key.type) {
      case KindKey::Type::number:
        options.numbers[key.name] = deck.number(at, key.fallback, key.range);
        break;
      case KindKey::Type::integer:
        options.numbers[key.name] =
            static_cast<double>(deck.integer(at, static_cast<std::int64_t>(key.fallback), key.range));
        break;
      case KindKey::Type::flag:
        options.numbers[key.name] = deck.boolean(at, key.fallback != 0) ? 1 : 0;
        break;
      case KindKey::Type::word:
        options.words[key.name] = deck.choice(at, key.choices.front(), key.choices);
        break;
    }
  }
  if (kind.refresh_every > 0)
    options.refresh_every =
        deck.integer_or("optimizer.refresh.every", "auto", kind.refresh_every, {.min = 1}).value_or(kind.refresh_every);
  return options;
}

}  // namespace sestina
