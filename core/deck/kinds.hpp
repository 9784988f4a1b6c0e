// The row of a matrix optimizer, which is all that the rest of the program knows of it: its keys in the deck and its
// state, as plain data. Deck, plan, checkpoint and memory check read these rows and know no optimizer by name. An
// optimizer is a pair of files, core/optimizer/methods/<name>.{hpp,cpp}, which registers its row and the class that
// goes with it. No Kokkos.
#pragma once
#include <algorithm>
#include <any>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/deck/deck.hpp"
#include "core/deck/update_rules.hpp"
#include "kernels/base/dtype.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

// The keys of one optimizer, declared once. A plain struct holds them typed, with their defaults as initial values, and
// its fields(OptionFields&) names each key with its member and with what it may be. Visitors read them from a deck,
// list them for documents and tests, or set one by its name (core/deck/kinds.cpp).

// Values that keep a divisor from being 0 (rows of an embedding without a gradient have a second moment of 0): not 0 in
// single precision either.
inline constexpr DeckRange eps_range{.min = std::numeric_limits<float>::min()};

class OptionFields {
 public:
  virtual ~OptionFields() = default;
  virtual void number(const char* key, double& value, DeckRange = {.min = 0}) = 0;
  virtual void integer(const char* key, std::int64_t& value, DeckRange = {.min = 0}) = 0;
  virtual void flag(const char* key, bool& value) = 0;
  virtual void word(const char* key, std::string& value, const std::vector<std::string>& choices) = 0;
  virtual void triples(const char* key, std::vector<std::array<double, 3>>& value) = 0;  // rows of three numbers

  void eps(const char* key, double& value) { number(key, value, eps_range); }

  // Names the choices of an enumeration: a word for each value, in its order.
  template <class Enum>
  void choice(const char* key, Enum& value, std::initializer_list<const char*> words) {
    const std::vector<std::string> choices(words.begin(), words.end());
    std::string chosen = choices[static_cast<std::size_t>(value)];
    word(key, chosen, choices);
    value = static_cast<Enum>(std::find(choices.begin(), choices.end(), chosen) - choices.begin());
  }

  // Names a key with one value, which cannot be chosen.
  void only(const char* key, const char* value) {
    std::string chosen = value;
    word(key, chosen, {chosen});
  }
};

// These words are shared by several optimizers. BasisForm says where first bases and projectors come from: the
// eigenvectors of the Gram matrix of the shorter side, or an SVD of the whole matrix, which are the same as far as the
// rounding of an fp32 matrix leaves them (core/optimizer/refresh/cold_bases.cpp).
enum class BasisForm : std::uint8_t { gram, svd };
enum class Order : std::uint8_t { after, before };              // before or after the step
enum class FirstStep : std::uint8_t { skip, use };              // skip: the first call only sets up bases and factors
enum class MomentumBasis : std::uint8_t { original, rotated };  // rotated: the rotated momentum is kept too
// Precision in which the products of an update read their operands; they sum in fp32. tf32 has 10 bits of mantissa and
// is for devices; a host has no such products, and computes in fp32.
enum class MatmulPrecision : std::uint8_t { fp32, tf32, bf16 };
inline constexpr std::initializer_list<const char*> matmul_precisions = {"fp32", "tf32", "bf16"};
inline constexpr std::initializer_list<const char*> ns_precisions = {"auto", "fp32", "bf16"};

struct Options;

// The place of state between its uses: in the memory of the space that computes, of the host, on NVMe, or in memory of
// the host that a device uses where it lies (core/memory/unified_memory.hpp).
enum class Tier : std::uint8_t { device, host, nvme, unified };
// The memory of the space that computes: that of the host, or a device's own, from which "host" and "unified" are other
// tiers.
enum class MemorySpace : std::uint8_t { host, device };
constexpr bool leaves(MemorySpace memory, Tier tier) {
  return tier == Tier::nvme || (tier != Tier::device && memory == MemorySpace::device);
}

// The resolved keys of one matrix optimizer: its own, and those that all have.
struct MatrixOptions {
  std::string kind;
  std::any keys;                   // the struct of its own keys, core/optimizer/methods/<kind>.hpp
  std::int64_t refresh_every = 1;  // updates, from [optimizer.refresh]; "auto": the kind's own default, in estimates
  // Updates after which the result of an asynchronous refresh is put in place (0: refreshes are inline), or by which it
  // is at the latest (eager).
  std::int64_t refresh_staleness = 0;
  bool refresh_eager = false;
  // every = "drift": a side is refreshed once its factor, in the basis in use, is this far from diagonal (0: by
  // period).
  double refresh_drift = 0;
  bool snapshot_bf16 = false;      // copies of factors for workers are kept in bf16
  std::uint64_t run_seed = 0;      // seed of random rounding
  UpdateRules rules;               // what becomes of its update
  UpdateSchedule schedule;         // numbers that change with the updates
  int state_bits = 32;             // bits of Adam's moments, where the kind has them
  std::int64_t state_block = 256;  // 8 bits: columns that share a scale
  // optimizer.refresh.tier: that of all fields of preconditioners, or of those that the deck names, as in checkpoints
  // but without the block of a matrix that they may belong to.
  Tier tier = Tier::device;
  std::map<std::string, Tier, std::less<>> field_tiers = {};
  Tier tier_of(std::string_view field) const;
  bool has_tier(Tier) const;       // whether some field lies there
  Tier state_tier = Tier::device;  // that of moments and momenta (core/optimizer/base/sides.hpp)
  // Returns whether the field, or one of them (pages_any), lies elsewhere between its uses.
  bool pages(std::string_view field, MemorySpace memory) const { return leaves(memory, tier_of(field)); }
  bool pages_any(MemorySpace memory) const {
    return has_tier(Tier::nvme) || (memory == MemorySpace::device && (has_tier(Tier::host) || has_tier(Tier::unified)));
  }

  // Returns its own keys. Error(internal): it is of another kind.
  template <class Keys>
  const Keys& as() const {
    const Keys* typed = std::any_cast<Keys>(&keys);
    SESTINA_REQUIRE(typed != nullptr, "optimizer \"{}\" has other keys", kind);
    return *typed;
  }
  // These functions take a key by name, for tests and golden files. Error(internal): the kind has no such key or word.
  bool has(std::string_view key) const;
  void set(std::string_view key, double value);  // a flag is 0 or 1
  void set(std::string_view key, const std::string& word);
};

// One key of [optimizer] with its value; inputs/README.md explains it.
struct KindKey {
  enum class Type { number, integer, flag, word, triples };
  std::string name;
  Type type = Type::number;
  double value = 0;
  std::vector<std::string> choices = {};  // choices of a word
  std::string word = {};                  // value of a word, or of rows of three numbers as text
};

// The times at which an array of state must be at hand.
enum class FieldUse : std::uint8_t {
  always,   // at hand as long as there is memory
  moment,   // a moment or momentum with a tier of its own: needed while its matrix is updated, by a view that stays
  update,   // a factor: needed while its matrix is updated
  result,   // a basis, root or projector: made again by refreshes, only read by updates
  refresh,  // needed by refreshes alone
};

// One array of the state of an m x n matrix. Names: momentum, second_moment, factor_left, factor_right, basis_left,
// basis_right, eigenvalue_left, eigenvalue_right, inverse_root_left, inverse_root_right, projector; left acts on rows.
// Arrays of f32 and u8 lie where the weight lies, i64 (counters) always in host memory. All start as zero.
struct FieldSize {
  std::string name;
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 1;  // cols = 1: a vector
  bool optional = false;            // a checkpoint may lack it: it is zero then
  FieldUse use = FieldUse::always;
  // The field is a basis or lies in one: a mean over ranks that have different bases would mean nothing
  // (parallel/plan/coherence.hpp). Codes and counters are never averaged either.
  bool of_basis = false;
  Tier tier = Tier::nvme;  // its tier in a run (core/optimizer/base/sides.hpp), where `use` leaves a choice
};
// Sets of_basis in the fields of these names, in all blocks.
void set_of_basis(std::vector<FieldSize>&, std::initializer_list<std::string_view> names);
// Adds moments (rows, cols) in 8 bits: "<name>_codes", and "<name>_scales" for blocks of so many columns.
void add_coded_fields(std::vector<FieldSize>&, const std::string& name, std::int64_t rows, std::int64_t cols,
                      std::int64_t block);
// Returns "factor_left" for "block_0_1.factor_left".
inline std::string_view field_of_block(std::string_view name) { return name.substr(name.rfind('.') + 1); }
// Returns the field of the copy that a result's refresh is computed from: the result under way lies in its tier.
std::string snapshot_of(std::string_view result);
// Returns the names of the fields that may lie below host memory, as the keys of a table of tiers.
struct MatrixKind;
std::vector<std::string> paged_fields(const MatrixKind&, const MatrixOptions&);
inline std::size_t bytes_of(const FieldSize& field) {
  return static_cast<std::size_t>(field.rows * field.cols) * size_of(field.dtype);
}

// FLOPs that are executed by one update, by a refresh of its preconditioners, and for the first bases, made once.
struct UpdateWork {
  double update = 0, refresh = 0, first_bases = 0;
};

// Needs of a matrix whose refreshes are jobs of host workers: jobs in flight together, bytes of scratch of the largest
// on a core of its own, bytes of all their new bases, roots and projectors, of the orders of their columns, and of the
// copies in host memory of what they read from a device: snapshots, and bases to start from.
struct RefreshNeeds {
  std::size_t jobs = 0, scratch = 0, results = 0, orders = 0, copies = 0;
};

// A row of the table: all that the rest of the program knows of an optimizer.
struct MatrixKind {
  std::string name;   // as in the deck
  std::any defaults;  // initial values of its own keys; all kinds have lr and weight_decay too
  void (*fields)(std::any& keys, OptionFields&) = nullptr;
  double weight_decay = 0.1;       // default
  std::int64_t refresh_every = 0;  // default of [optimizer.refresh] every; 0: there is nothing to refresh
  std::vector<FieldSize> (*state)(const MatrixOptions&, std::int64_t rows, std::int64_t cols) = nullptr;
  // FLOPs of an update as parallel.cost = "flops" states them (parallel/plan/plan_cost.hpp); null: rows * cols.
  double (*stated_flops)(double rows, double cols) = nullptr;
  // FLOPs of products and decompositions that are executed; null: none, all work is passes over memory.
  UpdateWork (*work)(const MatrixOptions&, std::int64_t rows, std::int64_t cols) = nullptr;
  // FLOPs for a shard (side, length) of a matrix that is cut along `length` and updated where its shards are
  // (parallel.tp_update = "distributed"). counted: it adds its own Gram matrix to the sum. Null: it cannot be.
  UpdateWork (*shard_work)(const MatrixOptions&, std::int64_t side, std::int64_t length, bool counted) = nullptr;
  // Needs of its refreshes as jobs of host workers (core/optimizer/refresh/port.hpp); null: they are always inline.
  RefreshNeeds (*refresh_needs)(const MatrixOptions&, std::int64_t rows, std::int64_t cols) = nullptr;
  // Returns whether it makes skew-symmetric updates from skew-symmetric gradients with these keys
  // (core/optimizer/base/matrix_optimizer.hpp); null: with no keys.
  bool (*keeps_skew)(const MatrixOptions&) = nullptr;
  // Returns the key that forces inline refreshes, with the reason; "": none. Null: no key does.
  std::string (*inline_reason)(const MatrixOptions&) = nullptr;
  // Makes it refresh in every update, and never skip one because the last result is still good: for measurements.
  void (*refresh_always)(MatrixOptions&) = nullptr;
  // Returns the number of Newton-Schulz steps whose products it executes; null: it executes none.
  std::int64_t (*newton_schulz)(const MatrixOptions&) = nullptr;
  // Checks of its keys against other sections, made once all of them are read: each collects errors.
  std::vector<void (*)(Deck&, Options&)> checks = {};
  // Returns the longest side that its preconditioners may have: a matrix with a longer one is cut into blocks, each of
  // which is a matrix to it (MatrixPart). Null: it takes any.
  std::int64_t (*max_dim)(const MatrixOptions&) = nullptr;
  // Returns the power p with which the rate of a matrix falls in its width, lr ~ width^-p (core/deck/transfer.hpp);
  // null or empty: no rule is known.
  std::optional<double> (*width_power)(const MatrixOptions&) = nullptr;
  // Columns that share a scale where it can update weights in 8 bits (optimizer.weight_bits); 0: it cannot.
  std::int64_t weight_group = 0;
};

// Makes a row whose keys are a struct of this type.
template <class Keys>
MatrixKind matrix_kind(std::string name) {
  MatrixKind kind;
  kind.name = std::move(name);
  kind.defaults = Keys();
  kind.fields = [](std::any& keys, OptionFields& fields) { std::any_cast<Keys&>(keys).fields(fields); };
  return kind;
}

// Returns the kinds registered so far.
const std::vector<MatrixKind>& matrix_kinds();
std::vector<std::string> shardable_kinds();
// Returns the FLOPs of a refresh as the row of the kind states them; 0: it states none.
double refresh_flops(const MatrixOptions&, std::int64_t rows, std::int64_t cols);
// Returns the needs of a kind whose refreshes can be jobs.
RefreshNeeds refresh_needs(const MatrixOptions&, std::size_t rows, std::size_t cols);
const MatrixKind* find_matrix_kind(std::string_view name);  // null: no such optimizer
// Adds a row (core/optimizer/base/register_kind.hpp). Throws Error(internal) for a name that is taken or that no deck
// can hold, and for a kind without keys or state function.
void add_matrix_kind(MatrixKind);

// Returns default values of all its keys.
MatrixOptions default_options(const MatrixKind&);
// Returns its own keys with the values that they have.
std::vector<KindKey> keys_of(const MatrixOptions&);
// Return optimizer.matmul_precision and optimizer.ns_precision; a kind without the key has "fp32" and "auto".
std::string matmul_precision(const MatrixOptions&);
std::string ns_precision(const MatrixOptions&);

// Reads the kind's keys of [optimizer] and [optimizer.refresh] every.
MatrixOptions read_matrix_options(Deck&, const MatrixKind&);

}  // namespace sestina
