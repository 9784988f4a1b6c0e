// What each matrix optimizer is to the rest of the program: its keys in the deck and its state, as plain data. Deck,
// plan, checkpoint and memory check read these rows and know no optimizer by name. An optimizer is a pair of files,
// core/optimizer/methods/<name>.{hpp,cpp}, which registers its row and the class that follows it. No Kokkos.
#pragma once
#include <algorithm>
#include <any>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/deck/deck.hpp"
#include "kernels/base/dtype.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

// The keys of one optimizer, declared once. A plain struct holds them typed, with their defaults as initial values, and
// its fields(OptionFields&) names each key with its member and with what it may be. Visitors read them from a deck,
// list them for documents and tests, or set one by its name (core/deck/kinds.cpp).

// What keeps a divisor from being 0 (rows of an embedding without a gradient have a second moment of 0): not 0 in
// single precision either.
inline constexpr DeckRange eps_range{.min = std::numeric_limits<float>::min()};

class OptionFields {
 public:
  virtual ~OptionFields() = default;
  virtual void number(const char* key, double& value, DeckRange = {.min = 0}) = 0;
  virtual void integer(const char* key, std::int64_t& value, DeckRange = {.min = 0}) = 0;
  virtual void flag(const char* key, bool& value) = 0;
  virtual void word(const char* key, std::string& value, const std::vector<std::string>& choices) = 0;

  void eps(const char* key, double& value) { number(key, value, eps_range); }

  // A word for each value of an enumeration, in its order.
  template <class Enum>
  void choice(const char* key, Enum& value, std::initializer_list<const char*> words) {
    const std::vector<std::string> choices(words.begin(), words.end());
    std::string chosen = choices[static_cast<std::size_t>(value)];
    word(key, chosen, choices);
    value = static_cast<Enum>(std::find(choices.begin(), choices.end(), chosen) - choices.begin());
  }

  // A key that states what cannot be chosen.
  void only(const char* key, const char* value) {
    std::string chosen = value;
    word(key, chosen, {chosen});
  }
};

// Words that several optimizers share.
// Where first bases and projectors come from: the eigenvectors of the Gram matrix of the shorter side, or an SVD of the
// whole matrix, which are the same as far as the rounding of an fp32 matrix leaves them (refresh/cold_bases.cpp).
enum class BasisForm : std::uint8_t { gram, svd };
enum class Order : std::uint8_t { after, before };              // of the step
enum class FirstStep : std::uint8_t { skip, use };              // the first call only sets up bases and factors, or not
enum class MomentumBasis : std::uint8_t { original, rotated };  // rotated: the rotated momentum is kept too

struct Options;

// Where state lies between its uses: in the memory of the space that computes, of the host, on NVMe.
enum class Tier : std::uint8_t { device, host, nvme };
// The memory of the space that computes: that of the host, or a device's own, from which "host" is another tier.
enum class MemorySpace : std::uint8_t { host, device };
constexpr bool leaves(MemorySpace memory, Tier tier) {
  return tier == Tier::nvme || (tier == Tier::host && memory == MemorySpace::device);
}

// The resolved keys of one matrix optimizer: its own, and what all have.
struct MatrixOptions {
  std::string kind;
  std::any keys;                   // the struct of its own keys, core/optimizer/methods/<kind>.hpp
  std::int64_t refresh_every = 1;  // updates, from [optimizer.refresh]; "auto": the kind's own default, in estimates
  // Updates after which the result of an asynchronous refresh is put in place (0: refreshes are inline), or by which
  // it is at the latest (eager).
  std::int64_t refresh_staleness = 0;
  bool refresh_eager = false;
  std::uint64_t run_seed = 0;      // for what rounds at random
  int state_bits = 32;             // of Adam's moments, where the kind has such
  std::int64_t state_block = 256;  // 8 bits: columns that share a scale
  // optimizer.refresh.tier: of all fields of preconditioners, and of those that the deck names, as in checkpoints,
  // without the block of a matrix that they may be of.
  Tier tier = Tier::device;
  std::map<std::string, Tier, std::less<>> field_tiers = {};
  Tier tier_of(std::string_view field) const;
  bool has_tier(Tier) const;  // of some field
  // The field, or one of them, lies elsewhere between its uses.
  bool pages(std::string_view field, MemorySpace memory) const { return leaves(memory, tier_of(field)); }
  bool pages_any(MemorySpace memory) const {
    return has_tier(Tier::nvme) || (leaves(memory, Tier::host) && has_tier(Tier::host));
  }

  // Its own keys. Error(internal): it is of another kind.
  template <class Keys>
  const Keys& as() const {
    const Keys* typed = std::any_cast<Keys>(&keys);
    SESTINA_REQUIRE(typed != nullptr, "optimizer \"{}\" has other keys", kind);
    return *typed;
  }
  // By name, for tests and golden files. Error(internal): the kind has no such key, or no such word.
  bool has(std::string_view key) const;
  void set(std::string_view key, double value);  // a flag is 0 or 1
  void set(std::string_view key, const std::string& word);
};

// One key of [optimizer] with its value; inputs/README.md explains it.
struct KindKey {
  enum class Type { number, integer, flag, word };
  std::string name;
  Type type = Type::number;
  double value = 0;
  std::vector<std::string> choices = {};  // of a word
  std::string word = {};                  // its value
};

// When an array of state must be at hand.
enum class FieldUse : std::uint8_t {
  always,   // at hand as long as there is memory
  update,   // a factor: needed while its matrix is updated
  result,   // also a basis, root or projector: what a refresh gives again, and updates only read
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
  // A basis, or what lies in one: a mean over ranks that have different ones would mean nothing (parallel/plan/
  // coherence.hpp). Codes and counters are never averaged either.
  bool of_basis = false;
  Tier tier = Tier::nvme;  // of a run (core/optimizer/base/sides.hpp), where `use` leaves a choice
};
// Marks those of these names, of all blocks.
void set_of_basis(std::vector<FieldSize>&, std::initializer_list<std::string_view> names);
// Moments (rows, cols) in 8 bits: "<name>_codes", and "<name>_scales" for blocks of so many columns.
void add_coded_fields(std::vector<FieldSize>&, const std::string& name, std::int64_t rows, std::int64_t cols,
                      std::int64_t block);
// "factor_left" of "block_0_1.factor_left".
inline std::string_view field_of_block(std::string_view name) { return name.substr(name.rfind('.') + 1); }
// The field of the copy that a result's refresh is computed from: the result under way lies in its tier.
std::string snapshot_of(std::string_view result);
// What may lie below host memory: names, as the keys of a table of tiers.
struct MatrixKind;
std::vector<std::string> paged_fields(const MatrixKind&, const MatrixOptions&);
inline std::size_t bytes_of(const FieldSize& field) {
  return static_cast<std::size_t>(field.rows * field.cols) * size_of(field.dtype);
}

// FLOPs of what one update executes, of a refresh of its preconditioners, and of the first bases, made once.
struct UpdateWork {
  double update = 0, refresh = 0, first_bases = 0;
};

// What refreshes of a matrix take as jobs of host workers: jobs in flight together, bytes of scratch of the largest on
// a core of its own, bytes of all their new bases, roots and projectors, of the orders of their columns, and of the
// copies in host memory of what they read of a device: snapshots, and bases to start from.
struct RefreshNeeds {
  std::size_t jobs = 0, scratch = 0, results = 0, orders = 0, copies = 0;
};

// A row of the table: all that the rest of the program knows of an optimizer.
struct MatrixKind {
  std::string name;   // as in the deck
  std::any defaults;  // of its own keys, besides lr and weight_decay, which all have
  void (*fields)(std::any& keys, OptionFields&) = nullptr;
  double weight_decay = 0.1;       // default
  std::int64_t refresh_every = 0;  // default of [optimizer.refresh] every; 0: there is nothing to refresh
  std::vector<FieldSize> (*state)(const MatrixOptions&, std::int64_t rows, std::int64_t cols) = nullptr;
  // FLOPs of an update as parallel.cost = "flops" states them (parallel/plan/plan_cost.hpp); null: rows * cols.
  double (*stated_flops)(double rows, double cols) = nullptr;
  // Products and decompositions that are executed; null: none, all of it is passes over memory.
  UpdateWork (*work)(const MatrixOptions&, std::int64_t rows, std::int64_t cols) = nullptr;
  // Of a shard (side, length) of a matrix that is cut along `length` and updated where its shards are
  // (parallel.tp_update = "distributed"). counted: it adds its own Gram matrix to the sum. Null: it cannot be.
  UpdateWork (*shard_work)(const MatrixOptions&, std::int64_t side, std::int64_t length, bool counted) = nullptr;
  // Its refreshes as jobs of host workers (core/optimizer/refresh/port.hpp); null: they are inline alone.
  RefreshNeeds (*refresh_needs)(const MatrixOptions&, std::int64_t rows, std::int64_t cols) = nullptr;
  // From skew-symmetric gradients it makes skew-symmetric updates (core/optimizer/base/matrix_optimizer.hpp), with
  // these keys; null: with none.
  bool (*keeps_skew)(const MatrixOptions&) = nullptr;
  // Which of its keys makes refreshes inline alone, with the reason; "": none. Null: none does.
  std::string (*inline_reason)(const MatrixOptions&) = nullptr;
  // Has it refresh in every update, and never spare one because the last result is still good: for measurements.
  void (*refresh_always)(MatrixOptions&) = nullptr;
  // Its products are those of so many Newton-Schulz steps; null: they are not.
  std::int64_t (*newton_schulz)(const MatrixOptions&) = nullptr;
  // What its keys ask of other sections, once all of them are read: collects errors.
  std::vector<void (*)(Deck&, Options&)> checks = {};
  // It can update weights in 8 bits (optimizer.weight_bits): so many columns share a scale; 0: it cannot.
  std::int64_t weight_group = 0;
};

// A row whose keys are a struct of this type.
template <class Keys>
MatrixKind matrix_kind(std::string name) {
  MatrixKind kind;
  kind.name = std::move(name);
  kind.defaults = Keys();
  kind.fields = [](std::any& keys, OptionFields& fields) { std::any_cast<Keys&>(keys).fields(fields); };
  return kind;
}

// Those registered so far.
const std::vector<MatrixKind>& matrix_kinds();
std::vector<std::string> shardable_kinds();
// FLOPs of a refresh as the row of the kind states them; 0: it states none.
double refresh_flops(const MatrixOptions&, std::int64_t rows, std::int64_t cols);
// Of a kind whose refreshes can be jobs.
RefreshNeeds refresh_needs(const MatrixOptions&, std::size_t rows, std::size_t cols);
const MatrixKind* find_matrix_kind(std::string_view name);  // null: no such optimizer
// Adds a row (core/optimizer/base/register_kind.hpp). Throws Error(internal) for a name that is taken or is none a
// deck can hold, and for a kind without state function.
void add_matrix_kind(MatrixKind);

// Default values of all its keys.
MatrixOptions default_options(const MatrixKind&);
// Its own keys with the values that they have.
std::vector<KindKey> keys_of(const MatrixOptions&);

// Reads the kind's keys of [optimizer] and [optimizer.refresh] every.
MatrixOptions read_matrix_options(Deck&, const MatrixKind&);

}  // namespace sestina
