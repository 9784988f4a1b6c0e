// Reads and checks the section [parallel].
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "core/deck/deck.hpp"
#include "core/deck/expert_options.hpp"
#include "core/deck/options.hpp"

namespace sestina {
namespace {

constexpr DeckRange rank_count{.min = 1, .max = 1 << 16};

// Reads an enumerator by its word: its number is the place in the list; the first word is the usual default.
template <class Enum>
Enum word(Deck& deck, std::string_view key, const std::vector<std::string>& words, Enum fallback = Enum{}) {
  const std::string got = deck.choice(key, words[static_cast<std::size_t>(fallback)], words);
  return static_cast<Enum>(std::find(words.begin(), words.end(), got) - words.begin());
}

const std::vector<std::string> corrections = {"none", "pipedream-lr", "nesterov", "pipemare", "prediction", "dc-asgd"};
const std::vector<std::string> schedules = {"1f1b", "gpipe", "interleaved", "zb-h1", "async-1f1b"};
const std::vector<std::string> stashes = {"on", "recompute", "saved"};

// Returns whether this is one of the corrections that have the key. With another correction the key is an error.
bool has_key(Deck& deck, const char* key, ParallelOptions::DelayCorrection kind,
             std::initializer_list<ParallelOptions::DelayCorrection> of) {
  if (std::find(of.begin(), of.end(), kind) != of.end()) return true;
  std::vector<std::string> words;
  for (const auto one : of) words.push_back(fmt::format("\"{}\"", name(one)));
  if (deck.has(key))
    deck.error(key, "needs parallel.delay_correction = " + fmt::format("{}", fmt::join(words, " or ")), "no such key");
  return false;
}

// Reads the keys of PipeDream-LR, PipeMare and DC-ASGD; weight prediction needs only its stash.
void read_correction(Deck& deck, const ScheduleOptions& schedule, ParallelOptions& parallel) {
  using Kind = ParallelOptions::DelayCorrection;
  using Stash = ParallelOptions::Stash;
  constexpr const char *word_key = "parallel.delay_correction", *lambda = "parallel.dc_lambda";
  ParallelOptions::Correction& correction = parallel.correction;
  const Kind kind = correction.kind = word<Kind>(deck, word_key, corrections);
  constexpr double part = 0.028;  // 7 of the 250 epochs of PipeDream-LR's published runs
  if (schedule.steps > 0)
    correction.steps = std::max<std::int64_t>(std::llround(part * static_cast<double>(schedule.steps)), 1);
  if (has_key(deck, "parallel.correction_steps", kind, {Kind::pipedream_lr, Kind::pipemare}))
    correction.steps = deck.integer("parallel.correction_steps", correction.steps, {.min = 1});
  if (has_key(deck, "parallel.pipemare_decay", kind, {Kind::pipemare}))
    correction.decay = deck.number("parallel.pipemare_decay", correction.decay,
                                   {.min = 0, .max = 1, .open_min = true, .open_max = true});
  if (has_key(deck, "parallel.pipemare_warmup", kind, {Kind::pipemare}))
    correction.warmup = deck.integer("parallel.pipemare_warmup", 0, not_negative);
  if (has_key(deck, lambda, kind, {Kind::dc_asgd})) {
    deck.require(lambda, "delay_correction = \"dc-asgd\" has no usual factor");
    correction.lambda = deck.number(lambda, 0, not_negative);
  }
  if (kind == Kind::none) return;
  if (parallel.schedule != ParallelOptions::Schedule::async_1f1b)
    deck.error(word_key, "needs parallel.schedule = \"async-1f1b\": synchronous schedules have no delay", "none");
  if ((kind == Kind::prediction || kind == Kind::dc_asgd) && parallel.stash != Stash::on)
    deck.error(word_key, "needs parallel.stash = \"on\"", "none, pipedream-lr, nesterov");
  if (kind == Kind::pipemare && parallel.stash != Stash::saved)
    deck.error(word_key, "needs parallel.stash = \"saved\"", "another correction");
}

// Reads the number of layers of each stage, given by hand.
void read_stage_layers(Deck& deck, const ModelConfig& model, ParallelOptions& parallel) {
  constexpr const char* key = "parallel.stage_layers";
  std::int64_t sum = 0;
  for (const std::int64_t layers : deck.integers(key, {.min = 1, .max = 1 << 20})) {
    parallel.stage_layers.push_back(static_cast<int>(layers));
    sum += layers;
  }
  const std::size_t stages = parallel.stage_layers.size();
  if (stages == 0) return;
  if (stages != static_cast<std::size_t>(parallel.pp))
    deck.error(key, fmt::format("{} numbers for parallel.pp = {} stages", stages, parallel.pp),
               "one number for each stage, or []");
  else if (sum != model.num_hidden_layers)
    deck.error(key, fmt::format("{} layers in all", sum),
               fmt::format("a sum of model.num_hidden_layers = {}", model.num_hidden_layers));
}

// Reads the stages, their schedule, and the keys that only an asynchronous one has.
void read_pipeline(Deck& deck, ParallelOptions& parallel) {
  using Parallel = ParallelOptions;
  parallel.schedule = word<Parallel::Schedule>(deck, "parallel.schedule", schedules);
  const bool interleaved = parallel.schedule == Parallel::Schedule::interleaved;
  const bool asynchronous = parallel.schedule == Parallel::Schedule::async_1f1b;
  const bool place_given = deck.has("parallel.placement"), clip_given = deck.has("parallel.clip_scope");
  parallel.placement = static_cast<Parallel::Placement>(
      deck.choice("parallel.placement", interleaved ? "round-robin" : "block", {"block", "round-robin"}) != "block");
  if (interleaved && place_given && parallel.placement == Parallel::Placement::block)
    deck.error("parallel.placement", "conflicts with parallel.schedule = \"interleaved\"", "round-robin");
  parallel.stash = word<Parallel::Stash>(deck, "parallel.stash", stashes);
  parallel.delay_scale = static_cast<int>(deck.integer("parallel.delay_scale", 1, {.min = 0, .max = 4096}));
  parallel.drain_every = deck.integer("parallel.drain_every", 0, not_negative);
  using Scope = Parallel::ClipScope;
  parallel.clip_scope =
      word<Scope>(deck, "parallel.clip_scope", {"global", "stage", "group", "global-lagged", "matrix"},
                  asynchronous ? Scope::stage : Scope::global);
  if (asynchronous && clip_given && parallel.clip_scope == Scope::global)
    deck.error("parallel.clip_scope",
               "conflicts with parallel.schedule = \"async-1f1b\": no stage waits for all others",
               "stage, group, matrix, global-lagged");
  if (!asynchronous && parallel.clip_scope == Scope::global_lagged)
    deck.error("parallel.clip_scope", "needs parallel.schedule = \"async-1f1b\": others know the norm in time",
               "global, stage, group, matrix");
}

// Collects errors for what conflicts with gradients, or weights, that blocks take turns with
// (parallel/plan/block_turns.hpp).
void require_turns(Deck& deck, const ParallelOptions& parallel, const ModelConfig& model) {
  using Parallel = ParallelOptions;
  const auto refuse = [&deck](const char* what, const char* allowed = "state") {
    deck.error("parallel.shard", what, allowed);
  };
  if (parallel.partition == Parallel::Partition::groups) refuse("conflicts with parallel.partition = \"groups\"");
  if (parallel.is_async())
    refuse("conflicts with parallel.schedule = \"async-1f1b\", which keeps whole weights of several updates");
  if (parallel.pp > 1 && parallel.schedule == Parallel::Schedule::zb_h1)
    refuse("conflicts with parallel.schedule = \"zb-h1\", which finishes gradients of a block at two times");
  if (parallel.shard == Parallel::Shard::weights && model.linear.form != "dense")
    refuse("conflicts with model.linear.form: frozen parts of weights are kept whole", "state, gradients");
}

// The baseline of owners with an all-reduce is one of whole gradients and of updates after all of them.
void require_reducible(Deck& deck, const ParallelOptions& parallel) {
  if (parallel.reduce == ParallelOptions::Reduce::owners) return;
  const auto refuse = [&deck](const char* what) { deck.error("parallel.reduce", what, "owners"); };
  using Partition = ParallelOptions::Partition;
  if (parallel.partition == Partition::groups) refuse("conflicts with parallel.partition = \"groups\"");
  if (parallel.partition == Partition::replicated)
    refuse("conflicts with parallel.partition = \"replicated\", whose ranks get all sums anyway");
  if (parallel.shard != ParallelOptions::Shard::state)
    refuse("conflicts with parallel.shard: ranks keep a part of the sums");
  if (parallel.overlap_updates) refuse("conflicts with parallel.overlap_updates: updates wait for all sums");
  if (parallel.is_async()) refuse("conflicts with parallel.schedule = \"async-1f1b\", whose updates wait for nobody");
}

// The same, and for what conflicts with gradients of which data-parallel ranks keep a part.
void require_shardable(Deck& deck, const ParallelOptions& parallel, const ModelConfig& model) {
  if (parallel.shard == ParallelOptions::Shard::state || parallel.dp == 1) return;
  if (parallel.partition == ParallelOptions::Partition::replicated)
    deck.error("parallel.shard", "conflicts with parallel.partition = \"replicated\": every rank needs all gradients",
               "state");
  if (parallel.bucket_elements > 0)
    deck.error("parallel.shard", "conflicts with parallel.bucket_elements: the gradients of each block are one bucket",
               "state");
  require_turns(deck, parallel, model);
}

}  // namespace

const char* name(ParallelOptions::DelayCorrection correction) {
  return corrections[static_cast<std::size_t>(correction)].c_str();
}

const char* name(ParallelOptions::Schedule schedule) { return schedules[static_cast<std::size_t>(schedule)].c_str(); }

const char* name(ParallelOptions::Stash stash) { return stashes[static_cast<std::size_t>(stash)].c_str(); }

ParallelOptions ParallelOptions::read(Deck& deck, const ModelConfig& model, const ScheduleOptions& schedule) {
  ParallelOptions parallel;
  parallel.dp = static_cast<int>(deck.integer("parallel.dp", 1, rank_count));
  parallel.tp = static_cast<int>(deck.integer("parallel.tp", 1, rank_count));
  parallel.pp = static_cast<int>(deck.integer("parallel.pp", 1, rank_count));
  parallel.partition = word<Partition>(deck, "parallel.partition",
                                       {"optimal", "balanced", "layerwise", "start-index", "replicated", "groups"});
  parallel.cost = word<Cost>(deck, "parallel.cost", {"flops", "elements", "seconds"});
  parallel.shard = word<Shard>(deck, "parallel.shard", {"state", "gradients", "weights"});
  parallel.alpha = deck.number("parallel.alpha", parallel.alpha, {.min = 0, .max = 1});
  parallel.bucket_elements = deck.integer("parallel.bucket_elements", 0, not_negative);
  parallel.micro_group_bytes = deck.integer("parallel.micro_group_bytes", parallel.micro_group_bytes, {.min = 1});
  parallel.node_size = static_cast<int>(deck.integer("parallel.node_size", 0, {.min = 0, .max = 1 << 16}));
  parallel.tp_update = word<TpUpdate>(deck, "parallel.tp_update", {"home", "duplicated", "distributed", "blockwise"});
  if (parallel.partition == Partition::groups && parallel.tp > 1 && parallel.tp_update != TpUpdate::home)
    deck.error("parallel.tp_update",
               "ranks update shares of matrices wherever their shards are (parallel.partition = \"groups\")", "home");
  parallel.sequence_parallel = deck.boolean("parallel.sequence_parallel", true);
  parallel.reduce = word<Reduce>(deck, "parallel.reduce", {"owners", "all"});
  parallel.overlap_updates = deck.boolean("parallel.overlap_updates", false);
  read_stage_layers(deck, model, parallel);
  read_pipeline(deck, parallel);
  read_correction(deck, schedule, parallel);
  read_expert_parallel(deck, model, parallel);
  constexpr std::int64_t most_ranks = 1 << 20;
  if (parallel.ranks() > most_ranks)
    deck.error("parallel.dp", fmt::format("{} ranks in all", parallel.ranks()),
               fmt::format("dp x tp x pp up to {}", most_ranks));
  if (parallel.pp > std::max<std::int64_t>(model.num_hidden_layers, 1))
    deck.error("parallel.pp", "more pipeline stages than layers", fmt::format("1 to {}", model.num_hidden_layers));
  for (const ModelDefect& defect : tensor_parallel_defects(model, parallel.tp))
    deck.error(defect.key, defect.what, defect.allowed);
  require_shardable(deck, parallel, model);
  require_reducible(deck, parallel);
  return parallel;
}

bool replicated_over_dp(const ParallelOptions& parallel) {
  return parallel.dp > 1 && parallel.partition == ParallelOptions::Partition::replicated;
}

bool replicated_over_tp(const ParallelOptions& parallel) {
  return parallel.tp > 1 && parallel.tp_update == ParallelOptions::TpUpdate::duplicated;
}

bool replicas_drift(const ParallelOptions& parallel, const OptimizerOptions& optimizer) {
  return (replicated_over_dp(parallel) || replicated_over_tp(parallel)) && optimizer.matrix &&
         optimizer.matrix->refresh_eager && optimizer.matrix->refresh_staleness > 0;
}

void resolve_correction(Deck& deck, Options& options) {
  using Kind = ParallelOptions::DelayCorrection;
  constexpr const char* key = "parallel.momentum_decay";
  const Kind kind = options.parallel.correction.kind;
  const OptimizerOptions& optimizer = options.optimizer;
  if ((kind == Kind::nesterov || kind == Kind::pipemare) && optimizer.kind != "adamw")
    deck.error("parallel.delay_correction", "needs optimizer.kind = \"adamw\"",
               "none, pipedream-lr, prediction, dc-asgd");
  if (!has_key(deck, key, kind, {Kind::nesterov})) return;
  for (std::size_t i = 0; i < optimizer.group.size(); ++i)
    if (optimizer.group[i].beta1)
      deck.error(fmt::format("optimizer.group.{}.beta1", i),
                 "conflicts with parallel.delay_correction = \"nesterov\", whose momentum all tensors share",
                 "no such key");
  constexpr double published = 0.004, updates = 50000;  // psi as published, for a run of so many updates
  const double stretched =
      options.schedule.steps > 0 ? published * updates / static_cast<double>(options.schedule.steps) : published;
  options.optimizer.adamw.momentum_decay = deck.number(key, stretched, not_negative);
}

std::int64_t first_of_mlp(const ModelConfig& model, int tp, int tp_rank) {
  constexpr std::int64_t aligned = 8;
  const std::int64_t size = model.intermediate_size;
  const std::int64_t unit = size % tp != 0 && size % aligned == 0 && size / aligned >= tp ? aligned : 1;
  return (size / unit * tp_rank + tp - 1) / tp * unit;
}

std::vector<ModelDefect> tensor_parallel_defects(const ModelConfig& model, int tp) {
  std::vector<ModelDefect> found;
  const auto need = [&](std::int64_t size, const char* what) {
    if (size % tp == 0) return;
    found.push_back({"parallel.tp", fmt::format("does not divide model.{} = {}", what, size),
                     fmt::format("a divisor of {}", size)});
  };
  need(model.num_attention_heads, "num_attention_heads");
  if (model.has_experts()) {  // each is split as an MLP is, into equal parts
    need(model.moe_intermediate_size, "moe_intermediate_size");
    need(model.shared_expert_intermediate_size, "shared_expert_intermediate_size");
  } else if (!model.linear.is_dense() && model.intermediate_size % tp != 0) {
    found.push_back({"parallel.tp",
                     fmt::format("does not divide model.intermediate_size = {}: ranks have equal parts of weights with "
                                 "model.linear.form = \"{}\"",
                                 model.intermediate_size, model.linear.form),
                     fmt::format("a divisor of {}", model.intermediate_size)});
  } else if (model.intermediate_size < tp) {
    found.push_back({"parallel.tp",
                     fmt::format("leaves ranks none of model.intermediate_size = {}", model.intermediate_size),
                     fmt::format("1 to {}", model.intermediate_size)});
  }
  // Key and value heads are split, or several ranks hold each one.
  const std::int64_t kv = model.num_key_value_heads;
  if (kv > 0 && kv % tp != 0 && tp % kv != 0)
    found.push_back({"parallel.tp", fmt::format("does not fit model.num_key_value_heads = {}", kv),
                     fmt::format("a divisor or a multiple of {}", kv)});
  return found;
}

namespace {

// Collects errors for options that training in pipelines conflicts with.
void require_pipeline(Deck& deck, const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  if (parallel.pp == 1) return;
  if (parallel.schedule == ParallelOptions::Schedule::zb_h1 && options.train.recompute)
    deck.error("train.recompute", "conflicts with parallel.schedule = \"zb-h1\"", "false");
  if (!parallel.is_async()) return;
  if (options.model.tie_word_embeddings && parallel.stash != ParallelOptions::Stash::on)
    deck.error("parallel.stash", "conflicts with model.tie_word_embeddings: both uses read the same version", "on");
  if (options.optimizer.qk_clip > 0 && parallel.stash != ParallelOptions::Stash::on)
    deck.error("optimizer.qk_clip",
               "conflicts with parallel.stash: a restart repeats forward passes, whose scores it needs, under stashed "
               "weights alone",
               "0 without parallel.stash = \"on\"");
  if (parallel.stash == ParallelOptions::Stash::saved && options.train.recompute)
    deck.error("train.recompute", "conflicts with parallel.stash = \"saved\"", "false");
}

// Returns whether several ranks update the same elements. With tp_update = "blockwise" each rank updates what it holds
// of a matrix: several tensor-parallel ranks hold key and value heads where there are fewer of them, and some parts of
// other forms of weights.
bool shares_shards(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  if (parallel.tp == 1 || parallel.tp_update != ParallelOptions::TpUpdate::blockwise) return false;
  const auto adds_matrices = [&](const OptimizerGroup& group) { return group.kind == options.optimizer.kind; };
  const std::vector<OptimizerGroup>& groups = options.optimizer.group;
  return options.model.num_key_value_heads % parallel.tp != 0 || options.model.linear.form != "dense" ||
         std::any_of(groups.begin(), groups.end(), adds_matrices);
}

// Replicas whose refreshes are seen when they are ready drift apart, and are made equal now and then
// (parallel/plan/coherence.hpp). Shards that several ranks of a group hold would need this as well; and where weights
// that an asynchronous pipeline keeps are cut too, ranks with the same shard have different ones.
void require_coherence(Deck& deck, const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  if (!options.optimizer.matrix || !options.optimizer.matrix->refresh_eager) return;
  const auto refuse_with = [&deck](const char* what) {
    deck.error("optimizer.refresh.visibility", "ranks that update the same matrix would drift apart",
               fmt::format("fixed with {}", what));
  };
  if (shares_shards(options))
    refuse_with(
        "parallel.tp_update = \"blockwise\" where several ranks hold the same shard (fewer key and value heads than "
        "parallel.tp, other forms of weights, matrices of a group)");
  if (parallel.tp > 1 && parallel.tp_update == ParallelOptions::TpUpdate::duplicated && parallel.is_async())
    refuse_with("parallel.tp_update = \"duplicated\" with parallel.schedule = \"async-1f1b\"");
}

// An audit compares bits of ranks, and of one calculation with the same one later (run.audit_every).
void require_auditable(Deck& deck, const Options& options) {
  if (options.run.audit_every == 0) return;
  const ParallelOptions& parallel = options.parallel;
  const auto refuse = [&deck](const char* what) { deck.error("run.audit_every", what, "0"); };
  if (!options.run.deterministic)
    refuse("conflicts with run.deterministic = false: a calculation need not come out the same again");
  if (parallel.is_async())
    refuse("conflicts with parallel.schedule = \"async-1f1b\": no stage waits for others to compute with it");
  if (keeps_masters_alone(parallel, options.train))
    refuse("conflicts with parallel.shard = \"weights\": ranks do not keep the weights that audits compare");
  if (options.train.lookahead.factor > 0)
    refuse("conflicts with train.lookahead: replicas would compute again before their weights move on");
  if (replicas_drift(parallel, options.optimizer))
    refuse("conflicts with optimizer.refresh.visibility = \"eager\" where replicas drift apart");
}

// Updates that begin before all gradients are there (parallel.overlap_updates) cannot be undone or looked at before.
void require_overlapped_updates(Deck& deck, const Options& options) {
  using Parallel = ParallelOptions;
  const Parallel& parallel = options.parallel;
  if (!parallel.overlap_updates) return;
  const auto refuse = [&deck](const char* key, const char* what, const char* allowed) {
    deck.error(key, fmt::format("{} (parallel.overlap_updates = true)", what), allowed);
  };
  if (!options.optimizer.matrix)
    refuse("optimizer.kind", "an elementwise rule updates all tensors at once, when all gradients are there",
           "a matrix optimizer");
  if (options.train.clip_norm > 0 && parallel.clip_scope != Parallel::ClipScope::matrix)
    refuse("parallel.clip_scope", "the norm over more than a matrix is known when its last gradient is there",
           "matrix, or train.clip_norm = 0");
  if (parallel.is_async())
    refuse("parallel.schedule", "stages of an asynchronous pipeline are updated within the passes",
           "a synchronous schedule");
  if (parallel.partition == Parallel::Partition::groups)
    refuse("parallel.partition", "shares of matrices are updated in rounds of all ranks",
           "optimal, balanced, layerwise, start-index");
  if (parallel.partition == Parallel::Partition::replicated)
    refuse("parallel.partition", "a rank that updates all matrices waits for all gradients",
           "optimal, balanced, layerwise, start-index");
  if (parallel.shard != Parallel::Shard::state)
    refuse("parallel.shard", "gradients, or weights, of all layers are not in memory at the end of the passes",
           "state");
  if (parallel.tp > 1) refuse("parallel.tp", "tensor-parallel ranks update whole matrices in rounds", "1");
  if (options.model.linear.form != "dense")
    refuse("model.linear.form", "gradients of other forms are made from sums over all micro-batches", "dense");
  if (options.run.audit_every > 0) refuse("run.audit_every", "an audit comes before the update", "0");
  if (options.run.holds_updates()) refuse("run.on_spike", "a spike is known when all gradients are there", "off, note");
  if (options.train.lookahead.factor > 0)
    refuse("train.lookahead.factor", "weights that moved on would not come back where the step is refused", "0");
  if (options.metrics.tensors_every > 0)
    refuse("metrics.tensors_every", "diagnostics compare weights before and after the update", "0");
}

// Shares of matrices lie anywhere in a stage (parallel/plan/matrix_groups.hpp), and some are updated together.
void require_groups(Deck& deck, const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  if (parallel.partition != ParallelOptions::Partition::groups || parallel.dp * parallel.tp == 1) return;
  const OptimizerOptions& optimizer = options.optimizer;
  if (!optimizer.matrix) return;
  const auto refuse = [&deck](const char* key, const std::string& what, const char* allowed) {
    deck.error(key, what + " (parallel.partition = \"groups\")", allowed);
  };
  if (!options.model.linear.is_dense()) refuse("model.linear.form", "shares are cut from dense weights", "dense");
}

// Divides the batch among data-parallel ranks; where it is one micro-batch, chooses the size of micro-batches instead.
void require_shares(Deck& deck, const ParallelOptions& parallel, TrainOptions& train) {
  // A stage is as many micro-batches late on all ranks; where each micro-batch is reduced, or experts are shared out,
  // all ranks run the same passes together.
  const bool sharded = parallel.shard != ParallelOptions::Shard::state;
  const bool even = parallel.is_async() || sharded || parallel.ep > 1;
  const char* const why = parallel.ep > 1 ? "parallel.ep > 1"
                          : sharded       ? "parallel.shard = \"gradients\" or \"weights\""
                                          : "parallel.schedule = \"async-1f1b\"";
  const int dp = parallel.dp, micros = train.global_batch / train.micro_batch;
  if (train.global_batch < dp) {
    deck.error("train.global_batch", fmt::format("fewer sequences than the {} ranks of parallel.dp", dp),
               fmt::format(">= {}", dp));
  } else if (even && train.global_batch % dp != 0) {
    deck.error("train.global_batch", fmt::format("{} needs the same share for all ranks", why),
               fmt::format("a multiple of parallel.dp = {}", dp));
  } else if (train.micro_batch == train.global_batch) {
    train.micro_batch = shared_micro_batch(train, dp);  // even too: where dp divides the batch, each rank has one
  } else if (train.global_batch % train.micro_batch == 0 && (micros < dp || (even && micros % dp != 0))) {
    deck.error("train.micro_batch", fmt::format("{} micro-batches for parallel.dp = {} ranks", micros, dp),
               even ? fmt::format("a divisor of {}", train.global_batch / dp)
                    : fmt::format("at most {}", train.global_batch / dp));
  }
}

}  // namespace

int shared_micro_batch(const TrainOptions& train, int dp) {
  int micro = train.micro_batch > 0 ? train.micro_batch : train.global_batch;
  while (micro > 1 && (train.global_batch % micro != 0 || train.global_batch / micro < dp)) --micro;
  return micro;
}

void require_trainable(Deck& deck, Options& options) {
  const ParallelOptions& parallel = options.parallel;
  require_pipeline(deck, options);
  require_whole_blocks(deck, options);
  require_state_tier(deck, options);
  const MatrixKind* kind = find_matrix_kind(options.optimizer.kind);
  if (parallel.tp_update == ParallelOptions::TpUpdate::distributed && parallel.tp > 1 && !(kind && kind->shard_work)) {
    // Gram matrices of the side that is not cut are sums over shards; bases turn the cut side too, so that directions
    // would travel to where it is whole and back, as far as gradients and weights of home do, and factors on top.
    const bool has_bases = kind && kind->newton_schulz;
    deck.error("parallel.tp_update",
               fmt::format("distributed is implemented for {}, not for {}{}", fmt::join(shardable_kinds(), ", "),
                           options.optimizer.kind,
                           has_bases ? ", whose bases turn the cut side too: it would send more than home" : ""),
               "home, duplicated, blockwise");
  }
  require_groups(deck, options);
  require_coherence(deck, options);
  require_auditable(deck, options);
  require_overlapped_updates(deck, options);
  if (parallel.dp == 1 && keeps_masters_alone(parallel, options.train)) require_turns(deck, parallel, options.model);
  require_expert_parallel(deck, options);
  require_router_bias(deck, options);
  require_shares(deck, parallel, options.train);
}

void require_one_rank(Deck& deck, const ParallelOptions& parallel) {
  const auto check = [&](const char* key, int ranks) {
    if (ranks > 1)
      deck.error(key, "this verb runs on one rank (several ranks: `train`, `eval`, `bench step`, `plan`)", "1");
  };
  check("parallel.dp", parallel.dp);
  check("parallel.tp", parallel.tp);
  check("parallel.pp", parallel.pp);
}

}  // namespace sestina
