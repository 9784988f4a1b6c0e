// [optimizer], [optimizer.scalar], [optimizer.refresh] and [[optimizer.group]].
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"
#include "core/deck/recipes.hpp"

namespace sestina {
namespace {

// Refuses an optional section that needs something else first; its keys are then not reported one by one.
void refuse(Deck& deck, std::string_view key, const std::string& why, const std::string& allowed) {
  if (deck.has(key)) deck.error(key, why, allowed);
}

// Reads the rule of what a matrix optimizer leaves. Schedule-free is named as a choice so that its reason can be told.
ElementRule read_scalar_rule(Deck& deck) {
  constexpr const char* key = "optimizer.scalar.kind";
  const ElementRule rule = *find_element_rule(deck.choice(key, "adamw", element_rules()));
  if (rule != ElementRule::schedule_free) return rule;
  deck.error(key, "the model would be the average of these tensors next to matrices that have none",
             "adamw, lion, ademamix");
  return ElementRule::adamw;
}

// Returns whether what its refreshes read is no factor of a side: a snapshot without one.
bool copies_gradients(const MatrixKind& kind, MatrixOptions matrix) {
  matrix.refresh_staleness = std::max<std::int64_t>(1, matrix.refresh_staleness);
  const std::vector<FieldSize> fields = kind.state(matrix, 2, 3);
  return std::any_of(fields.begin(), fields.end(), [](const FieldSize& field) { return field.name == "snapshot"; });
}

// Reads S, the updates from a copy to the use of its result. With "auto" a run finds it at its start: until then it is
// the most that it may be.
void read_staleness(Deck& deck, MatrixOptions& matrix, RefreshOptions& refresh) {
  constexpr const char* key = "optimizer.refresh.staleness";
  const std::int64_t longest = matrix.refresh_every - 1;
  constexpr std::int64_t usual = 5;  // as in the paper on Asteria
  const DeckRange range = refresh.automatic ? DeckRange{.min = 1} : not_negative;
  const std::int64_t fallback = refresh.automatic ? usual : std::min(usual, longest);
  const std::optional<std::int64_t> given = deck.integer_or(key, "auto", fallback, range);
  refresh.fits_staleness = !given;
  matrix.refresh_staleness = given.value_or(longest);
  if (refresh.fits_staleness && refresh.automatic)
    deck.error(key, "conflicts with optimizer.refresh.every = \"auto\", whose periods follow from it",
               "an integer >= 1");
  else if (refresh.fits_staleness && longest < 1)
    deck.error(key, "no result can be late with optimizer.refresh.every = 1", "0");
  else if (!refresh.automatic && matrix.refresh_staleness > longest)
    deck.error(key,
               fmt::format("a refresh would fall due before the previous one (optimizer.refresh.{} = {})",
                           matrix.refresh_drift > 0 ? "drift_check" : "every", matrix.refresh_every),
               fmt::format("0 to {}", longest));
}

// Refuses what needs to know S before the run measures it.
void require_known_staleness(Deck& deck, const MatrixOptions& matrix, const RefreshOptions& refresh) {
  if (!refresh.fits_staleness) return;
  constexpr const char* key = "optimizer.refresh.staleness";
  if (matrix.refresh_eager)
    deck.error(key, "conflicts with optimizer.refresh.visibility = \"eager\", where it bounds how far replicas drift",
               "an integer");
  if (refresh.chooses_executor)
    deck.error(key, "conflicts with optimizer.refresh.executor = \"auto\", which chooses by it", "an integer");
  if (refresh.budget != RefreshOptions::Budget::uniform)
    deck.error(key, "conflicts with optimizer.refresh.budget, by which stages have periods of their own", "an integer");
}

// Reads the keys that only asynchronous refreshes have.
void read_asynchronous(Deck& deck, const MatrixKind& kind, MatrixOptions& matrix, RefreshOptions& refresh) {
  constexpr const char *mode = "optimizer.refresh.mode", *late = "optimizer.refresh.staleness",
                       *visibility = "optimizer.refresh.visibility", *workers = "optimizer.refresh.workers",
                       *cores = "optimizer.refresh.cores", *priority = "optimizer.refresh.priority",
                       *coherence = "optimizer.refresh.coherence_every", *drift = "optimizer.refresh.coherence_drift",
                       *snapshot = "optimizer.refresh.snapshot", *executor = "optimizer.refresh.executor";
  refresh.asynchronous = deck.choice(mode, "inline", {"inline", "async"}) == "async";
  if (!refresh.asynchronous) {
    for (const char* key : {late, visibility, workers, cores, priority, coherence, drift, snapshot, executor})
      refuse(deck, key, "needs optimizer.refresh.mode = \"async\"", "no such key with mode = \"inline\"");
    return;
  }
  if (kind.refresh_needs == nullptr)
    deck.error(mode, "kind = \"" + kind.name + "\" has no refresh that a worker could compute", "inline");
  const std::string reason = kind.inline_reason ? kind.inline_reason(matrix) : "";
  if (!reason.empty()) deck.error(mode, "conflicts with " + reason, "inline");
  read_staleness(deck, matrix, refresh);
  matrix.snapshot_bf16 = deck.choice(snapshot, "fp32", {"fp32", "bf16"}) == "bf16";
  if (matrix.snapshot_bf16 && copies_gradients(kind, matrix))
    deck.error(snapshot, "kind = \"" + kind.name + "\" copies a gradient, and no symmetric factor", "\"fp32\"");
  refresh.chooses_executor = deck.choice(executor, "worker", {"worker", "auto"}) == "auto";
  if (refresh.chooses_executor && matrix.refresh_staleness == 0)
    deck.error(executor, "chooses between workers and the update, which is all with optimizer.refresh.staleness = 0",
               "worker");
  matrix.refresh_eager = deck.choice(visibility, "fixed", {"fixed", "eager"}) == "eager";
  refresh.workers = static_cast<int>(deck.integer(workers, 1, {.min = 1, .max = max_threads}));
  for (const std::int64_t core : deck.integers(cores, {.min = 0, .max = 1023}))
    refresh.cores.push_back(static_cast<int>(core));
  refresh.priority = static_cast<int>(deck.integer(priority, 0, {.min = 0, .max = 19}));
  if (matrix.refresh_eager) {  // with fixed visibility replicas never differ
    refresh.coherence_every = deck.integer(coherence, 0, {.min = 0, .max = 1000000000});
    refresh.coherence_drift = deck.number(drift, 0, not_negative);
    return;
  }
  for (const char* key : {coherence, drift})
    refuse(deck, key,
           "needs optimizer.refresh.visibility = \"eager\": replicas that see results at the same time do not drift",
           "no such key with visibility = \"fixed\"");
}

// Reads the budget with which stages of a pipeline refresh at their own pace.
void read_budget(Deck& deck, const MatrixKind& kind, const MatrixOptions& matrix, RefreshOptions& refresh) {
  using Budget = RefreshOptions::Budget;
  constexpr const char *budget = "optimizer.refresh.budget", *power = "optimizer.refresh.budget_power";
  const std::string word = deck.choice(budget, "uniform", {"uniform", "stage-aware", "reversed"});
  refresh.budget = word == "uniform" ? Budget::uniform : word == "reversed" ? Budget::reversed : Budget::stage_aware;
  if (refresh.budget == Budget::uniform)
    return refuse(deck, power, "needs optimizer.refresh.budget = \"stage-aware\" or \"reversed\"", "no such key");
  refresh.budget_power = deck.number(power, refresh.budget_power, not_negative);
  const std::string reason = kind.inline_reason ? kind.inline_reason(matrix) : "";
  if (kind.refresh_needs == nullptr)
    deck.error(budget, "kind = \"" + kind.name + "\" has no refresh whose cost could be shared out", "uniform");
  else if (!reason.empty())
    deck.error(budget, "conflicts with " + reason, "uniform");
}

constexpr const char* state_tier_key = "optimizer.state_tier";

Tier read_tier_at(Deck& deck, const std::string& key, Tier fallback) {
  const std::vector<std::string> tiers = {"device", "host", "nvme", "unified"};  // as enum Tier
  const std::string word = deck.choice(key, tiers[static_cast<std::size_t>(fallback)], tiers);
  return static_cast<Tier>(std::find(tiers.begin(), tiers.end(), word) - tiers.begin());
}

// Reads where preconditioners lie between their uses.
void read_tier(Deck& deck, const MatrixKind& kind, MatrixOptions& matrix) {
  constexpr const char* tier = "optimizer.refresh.tier";
  if (!deck.has_table(tier)) {
    matrix.tier = read_tier_at(deck, tier, Tier::device);
    return;
  }
  matrix.tier = read_tier_at(deck, fmt::format("{}.default", tier), Tier::device);
  for (const std::string& field : paged_fields(kind, matrix))
    matrix.field_tiers[field] = read_tier_at(deck, fmt::format("{}.{}", tier, field), matrix.tier);
}

// Reads the budgets and the store of state that lies elsewhere between its uses. A resume may change the tier, so the
// keys of one tier may stand next to the other; bench io measures the path, whatever the tier.
void read_store(Deck& deck, RefreshOptions& refresh) {
  refresh.path = deck.text("optimizer.refresh.path", "");
  refresh.device_bytes = deck.integer("optimizer.refresh.device_bytes", 0, not_negative);
  refresh.host_bytes = deck.integer("optimizer.refresh.host_bytes", 0, not_negative);
  refresh.nvme_bytes = deck.integer("optimizer.refresh.nvme_bytes", 0, not_negative);
  refresh.queue_depth =
      static_cast<int>(deck.integer("optimizer.refresh.queue_depth", refresh.queue_depth, {.min = 1, .max = 256}));
}

// Refuses what goes with given periods alone.
void check_drift(Deck& deck, const MatrixKind& kind, const MatrixOptions& matrix, const RefreshOptions& refresh) {
  constexpr const char* every = "optimizer.refresh.every";
  if (refresh.budget != RefreshOptions::Budget::uniform)
    deck.error(every, "conflicts with optimizer.refresh.budget, which shares out a period", "an integer >= 1");
  if (matrix.refresh_eager)
    deck.error(every,
               "conflicts with optimizer.refresh.visibility = \"eager\": ranks with different bases would decide apart",
               "visibility = \"fixed\", or an integer >= 1");
  const std::string reason = kind.inline_reason ? kind.inline_reason(matrix) : "";
  if (!reason.empty()) deck.error(every, "conflicts with " + reason, "an integer >= 1");
}

// Reads [optimizer.refresh] for an optimizer that has nothing to refresh: only moments may need its store. Where they
// stay on the device it is read if it is there, as a resume may say; never else, so that a resolved deck, which states
// every key, resolves to itself.
RefreshOptions read_store_alone(Deck& deck, const std::string& kind, Tier state_tier) {
  RefreshOptions refresh;
  if (state_tier != Tier::device || (deck.has(state_tier_key) && deck.has_table("optimizer.refresh")))
    read_store(deck, refresh);
  else
    refuse(deck, "optimizer.refresh", "kind = \"" + kind + "\" has no preconditioner to refresh",
           "no such section without optimizer.state_tier");
  return refresh;
}

RefreshOptions read_refresh(Deck& deck, const MatrixKind& kind, MatrixOptions& matrix) {
  if (kind.refresh_every == 0) return read_store_alone(deck, kind.name, matrix.state_tier);
  RefreshOptions refresh;
  constexpr const char *every = "optimizer.refresh.every", *stagger = "optimizer.refresh.stagger";
  refresh.automatic = deck.has(every) && deck.resolved(every) == "\"auto\"";
  read_asynchronous(deck, kind, matrix, refresh);
  read_budget(deck, kind, matrix, refresh);
  read_tier(deck, kind, matrix);
  read_store(deck, refresh);
  refresh.stagger = deck.boolean(stagger, refresh.automatic);
  if (refresh.automatic && !refresh.asynchronous)
    deck.error(every, "follows what workers can do: it needs optimizer.refresh.mode = \"async\"", "an integer >= 1");
  else if (refresh.automatic && !refresh.stagger)
    deck.error(stagger, "optimizer.refresh.every = \"auto\" spreads refreshes over all updates", "true");
  else if (refresh.automatic && refresh.budget != RefreshOptions::Budget::uniform)
    deck.error(every, "conflicts with optimizer.refresh.budget, which shares out a period", "an integer >= 1");
  require_known_staleness(deck, matrix, refresh);
  if (matrix.refresh_drift > 0) check_drift(deck, kind, matrix, refresh);
  refresh.max_failures = deck.integer("optimizer.refresh.max_failures", refresh.max_failures, not_negative);
  return refresh;
}

constexpr std::int64_t smallest_block = 8, largest_block = 2048;  // columns

// Reads how AdamW's moments are kept, and where all moments lie between their uses.
void read_state(Deck& deck, OptimizerOptions& optimizer) {
  constexpr const char *bits = "optimizer.state_bits", *block = "optimizer.state_block";
  optimizer.state_bits = static_cast<int>(deck.integer(bits, 32));
  if (optimizer.state_bits != 8 && optimizer.state_bits != 32) deck.error(bits, "no such width", "32, 8");
  optimizer.state_block = deck.integer(block, optimizer.state_block, {.min = smallest_block, .max = largest_block});
  if (!std::has_single_bit(static_cast<std::uint64_t>(optimizer.state_block)))
    deck.error(block, "not a power of two",
               fmt::format("{}, {}, ... {}", smallest_block, 2 * smallest_block, largest_block));
  optimizer.state_tier = read_tier_at(deck, state_tier_key, Tier::device);
}

OptimizerGroup read_group(Deck& deck, const std::string& at, const std::vector<std::string>& kinds) {
  OptimizerGroup group;
  deck.require(at + ".match", "each group needs a glob on the names of its weights");
  group.match = deck.text(at + ".match", "");
  if (deck.has(at + ".match") && group.match.empty())
    deck.error(at + ".match", "empty pattern", "a glob such as \"*.mlp.*\"");
  group.lr_multiplier = deck.maybe_number(at + ".lr_multiplier", not_negative);
  group.weight_decay = deck.maybe_number(at + ".weight_decay", not_negative);
  group.beta1 = deck.maybe_number(at + ".beta1", below_one);
  group.beta2 = deck.maybe_number(at + ".beta2", below_one);
  group.eps = deck.maybe_number(at + ".eps", eps_range);
  if (deck.has(at + ".kind")) group.kind = deck.choice(at + ".kind", kinds.front(), kinds);
  return group;
}

// Reads the name of a recipe, whose keys have been laid below the deck (core/deck/recipes.hpp).
void read_recipe(Deck& deck) {
  constexpr const char* key = "optimizer.recipe";
  const std::vector<std::string> names = recipe_names();
  const auto name = deck.maybe_text(key);
  if (name && std::find(names.begin(), names.end(), *name) == names.end())
    deck.error(key, "unknown recipe", fmt::format("{}", fmt::join(names, ", ")));
}

}  // namespace

OptimizerOptions OptimizerOptions::read(Deck& deck, const ScheduleOptions& schedule) {
  OptimizerOptions optimizer;
  read_recipe(deck);
  std::vector<std::string> kinds = element_rules();
  for (const MatrixKind& kind : matrix_kinds()) kinds.push_back(kind.name);
  optimizer.kind = deck.choice("optimizer.kind", "adamw", kinds);
  optimizer.rules = read_update_rules(deck);
  read_state(deck, optimizer);
  if (const MatrixKind* kind = find_matrix_kind(optimizer.kind)) {
    optimizer.lr = deck.maybe_number("optimizer.lr", not_negative).value_or(schedule.lr);
    constexpr const char* decay = "optimizer.weight_decay";
    optimizer.weight_decay = deck.number(decay, optimizer.rules.hyperball ? 0 : kind->weight_decay, not_negative);
    if (optimizer.rules.hyperball && optimizer.weight_decay > 0)
      deck.error(decay, "nothing decays on the hyperball", "0 with optimizer.hyperball = true");
    optimizer.per_head = deck.boolean("optimizer.per_head", false);
    optimizer.matrix = read_matrix_options(deck, *kind);
    optimizer.matrix->state_tier = optimizer.state_tier;
    optimizer.refresh = read_refresh(deck, *kind, *optimizer.matrix);
    optimizer.adamw = read_element_options(deck, "optimizer.scalar", read_scalar_rule(deck), optimizer.lr, schedule);
    kinds = {name(optimizer.adamw.rule), optimizer.kind};
  } else {
    optimizer.adamw = read_element_options(
        deck, "optimizer", find_element_rule(optimizer.kind).value_or(ElementRule::adamw), schedule.lr, schedule);
    optimizer.lr = optimizer.adamw.lr;
    optimizer.weight_decay = optimizer.adamw.weight_decay;
    refuse(deck, "optimizer.scalar", "applies to matrix optimizers only",
           "[optimizer] itself for kind = \"" + optimizer.kind + "\"");
    optimizer.refresh = read_store_alone(deck, optimizer.kind, optimizer.state_tier);
    kinds = {optimizer.kind};
  }
  optimizer.schedule = read_update_schedule(deck, schedule, optimizer.matrix && optimizer.matrix->has("momentum"));
  optimizer.qk_clip = deck.number("optimizer.qk_clip", 0, not_negative);
  optimizer.qk_clip_alpha = deck.number("optimizer.qk_clip_alpha", optimizer.qk_clip_alpha, {.min = 0, .max = 1});
  if (optimizer.matrix) {
    optimizer.matrix->state_bits = optimizer.state_bits;
    optimizer.matrix->state_block = optimizer.state_block;
    optimizer.matrix->rules = optimizer.rules;
    optimizer.matrix->schedule = optimizer.schedule;
  }
  optimizer.reset_missing = deck.choice("optimizer.on_missing", "error", {"error", "reset"}) == "reset";
  const std::size_t groups = deck.table_count("optimizer.group");
  for (std::size_t i = 0; i < groups; ++i)
    optimizer.group.push_back(read_group(deck, fmt::format("optimizer.group.{}", i), kinds));
  require_element_rule(deck, optimizer);
  return optimizer;
}

void require_state_tier(Deck& deck, const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  const MatrixKind* const kind = find_matrix_kind(options.optimizer.kind);
  if (options.optimizer.state_tier == Tier::device || kind == nullptr || !kind->shard_work) return;
  const auto refuse_with = [&deck](const char* layout) {
    deck.error(state_tier_key,
               fmt::format("{} keeps momenta of shards, which ranks update together, in memory", layout), "device");
  };
  if (parallel.tp > 1 && parallel.tp_update == ParallelOptions::TpUpdate::distributed)
    refuse_with("parallel.tp_update = \"distributed\"");
  if (parallel.dp * parallel.tp > 1 && parallel.partition == ParallelOptions::Partition::groups)
    refuse_with("parallel.partition = \"groups\"");
}

void require_whole_blocks(Deck& deck, const Options& options) {
  const OptimizerOptions& optimizer = options.optimizer;
  const auto is_adamw = [](const OptimizerGroup& group) { return group.kind == "adamw"; };
  const bool cuts_adamw =
      options.parallel.tp > 1 &&
      (optimizer.kind == "adamw" || std::any_of(optimizer.group.begin(), optimizer.group.end(), is_adamw));
  if (optimizer.state_bits != 8 || !cuts_adamw) return;
  // Columns of row-parallel weights on one rank, which must be whole blocks.
  const int tp = options.parallel.tp;
  const std::int64_t query = options.model.query_width() / tp;
  std::int64_t common = query;
  std::vector<std::int64_t> inner;  // sizes of the ranks' parts of the MLP, the largest first
  for (int rank = 0; rank < tp; ++rank) {
    inner.push_back(first_of_mlp(options.model, tp, rank + 1) - first_of_mlp(options.model, tp, rank));
    common = std::gcd(common, inner.back());
  }
  std::sort(inner.begin(), inner.end(), std::greater<>());
  inner.erase(std::unique(inner.begin(), inner.end()), inner.end());
  if (common % optimizer.state_block == 0) return;
  std::string allowed;
  for (std::int64_t block = smallest_block; block <= largest_block && common % block == 0; block *= 2)
    allowed += fmt::format("{}, ", block);
  deck.error(
      "optimizer.state_block",
      fmt::format("parallel.tp = {} cuts rows of o_proj and down_proj into {} and {} columns: a block of {} would "
                  "lie on two ranks",
                  tp, query, fmt::join(inner, " or "), optimizer.state_block),
      allowed + (allowed.empty() ? "" : "or ") + "optimizer.state_bits = 32");
}

}  // namespace sestina
