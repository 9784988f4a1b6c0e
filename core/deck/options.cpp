#include "core/deck/options.hpp"

#include <algorithm>
#include <cctype>
#include <limits>

#include "core/deck/deck.hpp"
#include "core/deck/recipes.hpp"

namespace sestina {
namespace {

constexpr DeckRange small_count{.min = 0, .max = 1 << 20};  // counts that are kept as int

int small_integer(Deck& deck, std::string_view key, int fallback, DeckRange range = small_count) {
  return static_cast<int>(deck.integer(key, fallback, range));
}

constexpr std::pair<const char*, DataSource::Format> formats[] = {{"megatron", DataSource::Format::megatron},
                                                                  {"llmc", DataSource::Format::llmc},
                                                                  {"npy", DataSource::Format::npy},
                                                                  {"text", DataSource::Format::text},
                                                                  {"jsonl", DataSource::Format::jsonl}};

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const auto& [name, value] : formats) names.emplace_back(name);
  return names;
}

DataSource read_source(Deck& deck, const std::string& at, const DataSource& defaults) {
  DataSource source = defaults;
  deck.require(at + ".path", "each source needs its file, or its prefix for format = \"megatron\"");
  source.path = deck.path(at + ".path", "");
  if (deck.has(at + ".path") && source.path.empty()) deck.error(at + ".path", "empty path", "a file");
  const std::string format = deck.choice(at + ".format", is_jsonl_name(source.path) ? "jsonl" : "text", format_names());
  for (const auto& [name, value] : formats)
    if (format == name) source.format = value;
  source.weight = deck.number(at + ".weight", 1, positive);
  if (source.format == DataSource::Format::jsonl) source.text_key = deck.text(at + ".text_key", defaults.text_key);
  return source;
}

std::vector<DataSource> read_sources(Deck& deck, const std::string& key, const DataSource& defaults) {
  std::vector<DataSource> sources;
  const std::size_t count = deck.table_count(key);
  for (std::size_t i = 0; i < count; ++i) sources.push_back(read_source(deck, fmt::format("{}.{}", key, i), defaults));
  return sources;
}

// Reads the tokenizer: the command line counts first, then the folder of the model, then the deck, which is often
// written for another model.
void read_tokenizer(Deck& deck, const ModelConfig& model, DataOptions& data) {
  data.model_folder = model.from_hf;
  constexpr const char* key = "data.tokenizer";
  if (const auto said = deck.maybe_text(key); said && *said == "bytes") {
    if (!deck.from_file(key) || model.hf_tokenizer().empty()) {
      data.bytes_chosen = true;
      return;
    }
  }
  data.tokenizer = deck.path(key, "");
  if (model.hf_tokenizer().empty() || (deck.has(key) && !deck.from_file(key))) return;
  data.tokenizer = deck.resolve(key, model.hf_tokenizer());
  data.tokenizer_of_model = true;
}

void read_spikes(Deck& deck, RunOptions& run) {
  using OnSpike = RunOptions::OnSpike;
  const std::string on_spike = deck.choice("run.on_spike", "off", {"off", "note", "recompute", "rollback"});
  run.on_spike = on_spike == "note"        ? OnSpike::note
                 : on_spike == "recompute" ? OnSpike::recompute
                 : on_spike == "rollback"  ? OnSpike::rollback
                                           : OnSpike::off;
  run.spike_window = small_integer(deck, "run.spike_window", run.spike_window, {.min = 4, .max = 10000});
  run.spike_factor = deck.number("run.spike_factor", run.spike_factor, positive);
  run.max_rollbacks = small_integer(deck, "run.max_rollbacks", run.max_rollbacks);
}

// The stages of an asynchronous pipeline are updated before all ranks know the loss: there is nothing to hold back.
void require_spikes_fit(Deck& deck, const Options& options) {
  if (options.run.holds_updates() && options.parallel.is_async())
    deck.error(
        "run.on_spike",
        "needs the loss before the update, and parallel.schedule = \"async-1f1b\" updates stages before it is known",
        "off, note");
}

}  // namespace

// Knows JSONL by its name, so that nobody trains on braces.
bool is_jsonl_name(std::string_view path) {
  const auto drop = [&](std::string_view suffix) {  // in upper or lower case
    const bool there = path.size() >= suffix.size() &&
                       std::equal(suffix.rbegin(), suffix.rend(), path.rbegin(),
                                  [](unsigned char a, unsigned char b) { return a == std::tolower(b); });
    if (there) path.remove_suffix(suffix.size());
    return there;
  };
  if (!drop(".gz")) drop(".zst");
  return drop(".jsonl") || drop(".ndjson") || drop(".json");
}

RunOptions RunOptions::read(Deck& deck) {
  RunOptions run;
  run.name = deck.text("run.name", run.name);
  if (run.name.empty() || run.name == "." || run.name == ".." ||
      run.name.find_first_of(std::string_view("/\0", 2)) != run.name.npos)
    deck.error("run.name", "not the name of a folder", "a name without \"/\"");
  run.dir = deck.text("run.dir", "");
  run.seed = static_cast<std::uint64_t>(deck.integer("run.seed", 1, not_negative));
  run.steps = deck.integer("run.steps", 0, not_negative);
  run.deterministic = deck.boolean("run.deterministic", false);
  run.walltime = deck.duration("run.walltime", 0);
  run.stop_signals = deck.texts("run.stop_signals", run.stop_signals);
  const std::vector<std::string> signals = {"TERM", "USR1", "USR2", "ALRM"};
  for (const auto& name : run.stop_signals)
    if (std::find(signals.begin(), signals.end(), name) == signals.end())
      deck.error("run.stop_signals", fmt::format("unknown signal \"{}\"", name),
                 fmt::format("{}", fmt::join(signals, ", ")));
  run.abort_timeout = deck.number("run.abort_timeout", run.abort_timeout, positive);
  run.start_timeout = deck.number("run.start_timeout", run.start_timeout, positive);
  run.on_nonfinite =
      deck.choice("run.on_nonfinite", "stop", {"stop", "skip"}) == "skip" ? OnNonfinite::skip : OnNonfinite::stop;
  read_spikes(deck, run);
  run.space = deck.choice("run.space", "device", {"device", "host"}) == "host" ? Space::host : Space::device;
  run.threads = small_integer(deck, "run.threads", 0, {.min = 0, .max = max_threads});
  run.audit_every = deck.integer("run.audit_every", 0, not_negative);
  run.on_audit =
      deck.choice("run.on_audit", "recompute", {"recompute", "stop"}) == "stop" ? OnAudit::stop : OnAudit::recompute;
  const std::string check_speed = deck.choice("run.check_speed", "off", {"off", "warn", "stop"});
  run.check_speed = check_speed == "warn"   ? CheckSpeed::warn
                    : check_speed == "stop" ? CheckSpeed::stop
                                            : CheckSpeed::off;
  const std::string check = deck.choice("run.check", "first", {"first", "always", "off"});
  run.check = check == "first" ? Check::first : check == "always" ? Check::always : Check::off;
  return run;
}

namespace {

MeasuredUpdate read_update(Deck& deck, const std::string& at) {
  for (const char* key : {".kind", ".precision", ".rows", ".cols", ".gflop", ".seconds"})
    deck.require(at + key, "each measured update needs it, as `bench optimizer --machine` writes it");
  MeasuredUpdate update;
  update.kind = deck.text(at + ".kind", "");
  update.bf16 = deck.choice(at + ".precision", "fp32", {"fp32", "bf16"}) == "bf16";
  constexpr double longest = 1e9;
  update.rows = deck.integer(at + ".rows", 1, {.min = 1, .max = longest});
  update.cols = deck.integer(at + ".cols", 1, {.min = 1, .max = longest});
  update.gflop = deck.number(at + ".gflop", 0, not_negative);
  update.seconds = deck.number(at + ".seconds", 1, positive);
  update.refresh_s = deck.number(at + ".refresh_s", 0, not_negative);
  update.matmul_precision =
      deck.choice(at + ".matmul_precision", "fp32", {matmul_precisions.begin(), matmul_precisions.end()});
  update.ns_precision = deck.choice(at + ".ns_precision", "auto", {ns_precisions.begin(), ns_precisions.end()});
  return update;
}

}  // namespace

MachineOptions MachineOptions::read(Deck& deck) {
  MachineOptions machine;
  machine.peak_tflops = deck.maybe_number("machine.peak_tflops", positive);
  machine.memory_bandwidth = deck.maybe_number("machine.memory_bandwidth", positive);
  machine.network_bandwidth = deck.maybe_number("machine.network_bandwidth", positive);
  machine.disk_bandwidth = deck.maybe_number("machine.disk_bandwidth", positive);
  machine.host_bandwidth = deck.maybe_number("machine.host_bandwidth", positive);
  machine.worker_gflops = deck.maybe_number("machine.worker_gflops", positive);
  machine.memory = deck.maybe_number("machine.memory", positive);
  machine.host_memory = deck.maybe_number("machine.host_memory", positive);
  machine.host = deck.text("machine.host", "");
  const std::size_t updates = deck.table_count("machine.update");
  for (std::size_t i = 0; i < updates; ++i)
    machine.update.push_back(read_update(deck, fmt::format("machine.update.{}", i)));
  return machine;
}

DataOptions DataOptions::read(Deck& deck, const ModelConfig& model) {
  DataOptions data;
  constexpr std::int64_t usual_length = 1024, longest = 1 << 20;
  const std::int64_t positions = std::clamp<std::int64_t>(model.max_position_embeddings, 1, longest);
  data.sequence_length =
      small_integer(deck, "data.sequence_length", static_cast<int>(std::min(positions, usual_length)),
                    {.min = 1, .max = static_cast<double>(longest)});
  if (data.sequence_length > positions)
    deck.error("data.sequence_length", fmt::format("longer than model.max_position_embeddings = {}", positions),
               fmt::format("1 to {}", positions));
  read_tokenizer(deck, model, data);
  data.begin_token = deck.text("data.begin_token", "");
  data.end_token = deck.text("data.end_token", "");
  data.shuffle = deck.boolean("data.shuffle", true);
  data.mask_documents = deck.boolean("data.mask_documents", false);
  data.validation_fraction = deck.number("data.validation_fraction", 0, below_one);
  DataSource defaults;
  defaults.text_key = deck.text("data.text_key", defaults.text_key);
  defaults.invalid_limit = deck.number("data.invalid_limit", defaults.invalid_limit, {.min = 0, .max = 1});
  data.source = read_sources(deck, "data.source", defaults);
  data.validation = read_sources(deck, "data.validation", defaults);
  constexpr std::int64_t byte_vocabulary = 256;
  if (data.reads_bytes() && model.vocab_size < byte_vocabulary)
    deck.error("model.vocab_size", "too small for text read as bytes (no data.tokenizer)", ">= 256");
  return data;
}

bool DataOptions::reads_text() const {
  const auto text = [](const DataSource& s) { return is_text(s.format); };
  return std::any_of(source.begin(), source.end(), text) || std::any_of(validation.begin(), validation.end(), text);
}

bool DataOptions::reads_bytes() const { return tokenizer.empty() && reads_text(); }

TrainOptions TrainOptions::read(Deck& deck) {
  TrainOptions train;
  train.global_batch = small_integer(deck, "train.global_batch", train.global_batch, {.min = 1, .max = 1 << 20});
  const int micro_batch = small_integer(deck, "train.micro_batch", 0);
  train.micro_batch = micro_batch == 0 ? train.global_batch : micro_batch;
  if (train.global_batch % train.micro_batch != 0)
    deck.error("train.micro_batch", "does not divide train.global_batch",
               fmt::format("a divisor of {}, or 0 for all at once", train.global_batch));
  train.precision =
      deck.choice("train.precision", "fp32", {"fp32", "bf16"}) == "bf16" ? Precision::bf16 : Precision::fp32;
  train.clip_norm = deck.number("train.clip_norm", train.clip_norm, not_negative);
  train.recompute = deck.boolean("train.recompute", false);
  train.graphs = deck.boolean("train.graphs", false);
  train.logit_bytes = deck.integer("train.logit_bytes", 0, not_negative);
  train.ema_tau = deck.number("train.ema_tau", 0, not_negative);
  LookaheadOptions& lookahead = train.lookahead;
  lookahead.factor = deck.number("train.lookahead.factor", 0, not_negative);
  lookahead.ema = deck.number("train.lookahead.ema", lookahead.ema, below_one);
  lookahead.from = deck.integer("train.lookahead.from", lookahead.from, not_negative);
  lookahead.until = deck.integer("train.lookahead.until", 0, not_negative);
  return train;
}

ScheduleOptions ScheduleOptions::read(Deck& deck, const RunOptions& run) {
  ScheduleOptions schedule;
  const std::string kind = deck.choice("schedule.kind", "cosine", {"cosine", "linear", "wsd", "power", "constant"});
  schedule.kind = kind == "linear"     ? Kind::linear
                  : kind == "wsd"      ? Kind::wsd
                  : kind == "power"    ? Kind::power
                  : kind == "constant" ? Kind::constant
                                       : Kind::cosine;
  schedule.lr = deck.number("schedule.lr", schedule.lr, not_negative);
  schedule.warmup_steps = deck.integer("schedule.warmup_steps", 0, not_negative);
  schedule.min_lr_ratio = deck.number("schedule.min_lr_ratio", schedule.min_lr_ratio, {.min = 0, .max = 1});
  const std::int64_t steps = deck.integer("schedule.steps", 0, not_negative);
  const std::int64_t decay_steps = deck.integer("schedule.decay_steps", 0, not_negative);
  schedule.power = deck.number("schedule.power", schedule.power, positive);
  schedule.transfer = read_transfer(deck);
  schedule.steps = steps == 0 ? run.steps : steps;
  constexpr std::int64_t decay_part = 5;  // wsd and power decay over the last fifth unless the deck says otherwise
  schedule.decay_steps = decay_steps == 0 ? schedule.steps / decay_part : decay_steps;
  // A run is often cut short for a trial: without a length of its own the schedule follows the run, as
  // short_run_warning() tells.
  if (steps > 0 && schedule.warmup_steps > steps)
    deck.error("schedule.warmup_steps", "beyond the last step of the schedule", fmt::format("0 to {}", steps));
  else if (schedule.falls_late() && steps > 0 && decay_steps > steps - schedule.warmup_steps)
    deck.error("schedule.decay_steps", "warm-up and decay are longer than the schedule",
               fmt::format("0 to {}", steps - schedule.warmup_steps));
  return schedule;
}

CheckpointOptions CheckpointOptions::read(Deck& deck) {
  CheckpointOptions checkpoint;
  checkpoint.every = deck.integer("checkpoint.every", 0, not_negative);
  checkpoint.keep = small_integer(deck, "checkpoint.keep", checkpoint.keep);
  checkpoint.keep_every = deck.integer("checkpoint.keep_every", 0, not_negative);
  checkpoint.async = deck.boolean("checkpoint.async", true);
  checkpoint.staging_dir = deck.text("checkpoint.staging_dir", "");
  checkpoint.drains = deck.choice("checkpoint.pipeline", "stash", {"stash", "drain"}) == "drain";
  checkpoint.verify_full = deck.choice("checkpoint.verify", "digest", {"digest", "full"}) == "full";
  return checkpoint;
}

MetricsOptions MetricsOptions::read(Deck& deck) {
  MetricsOptions metrics;
  metrics.every = deck.integer("metrics.every", metrics.every, {.min = 1});
  metrics.eval_every = deck.integer("metrics.eval_every", 0, not_negative);
  metrics.eval_batches = small_integer(deck, "metrics.eval_batches", metrics.eval_batches, {.min = 1, .max = 1 << 20});
  metrics.tensors_every = deck.integer("metrics.tensors_every", 0, not_negative);
  metrics.updates_every = deck.integer("metrics.updates_every", 0, not_negative);
  metrics.rotations_every = deck.integer("metrics.rotations_every", 0, not_negative);
  if (metrics.rotations_every > 0)
    metrics.rotation_bound = deck.number("metrics.rotation_bound", metrics.rotation_bound, not_negative);
  metrics.tensorboard = deck.boolean("metrics.tensorboard", false);
  metrics.trace = deck.integer("metrics.trace", 0, not_negative);
  return metrics;
}

// Passes that are recorded once are the same each time, and nobody does anything between their blocks.
static void require_recordable(Deck& deck, const Options& options) {
  if (!options.train.graphs) return;
  const ParallelOptions& parallel = options.parallel;
  const auto refuse = [&deck](const char* what) { deck.error("train.graphs", what, "false"); };
  if (parallel.dp * parallel.tp * parallel.pp > 1)
    refuse("conflicts with several ranks: they exchange gradients and activations between the blocks of a pass");
  if (parallel.shard != ParallelOptions::Shard::state)
    refuse("conflicts with parallel.shard: gradients or weights of blocks take turns in a pass");
  if (options.model.has_experts()) refuse("conflicts with experts: the host waits for their numbers of rows in a pass");
  if (options.model.linear.form != "dense")
    refuse("conflicts with model.linear: forms of weights make and merge what passes read");
  if (options.optimizer.qk_clip > 0) refuse("conflicts with optimizer.qk_clip: passes leave their scores in turns");
  if (options.run.deterministic && options.train.micro_batch > 0 &&
      options.train.micro_batch != options.train.global_batch)
    refuse("conflicts with run.deterministic where an update has several micro-batches: they go into a tree");
  if (options.metrics.trace > 0) refuse("conflicts with metrics.trace: blocks of a recorded pass have no times");
}

Options Options::read(Deck& deck) {
  Options options;
  options.run = RunOptions::read(deck);
  options.machine = MachineOptions::read(deck);
  options.model = ModelConfig::read(deck);
  lay_recipe(deck, options.run, options.model);
  options.data = DataOptions::read(deck, options.model);
  options.train = TrainOptions::read(deck);
  options.schedule = ScheduleOptions::read(deck, options.run);
  if (options.train.lookahead.until == 0) options.train.lookahead.until = 2 * options.schedule.steps / 3;
  options.optimizer = OptimizerOptions::read(deck, options.schedule);
  constexpr double ahead = 0.75;  // the rank that waits for a worker reports before those that wait for the rank
  options.optimizer.refresh.timeout = ahead * options.run.abort_timeout;
  if (options.optimizer.qk_clip > 0 && options.model.query_norms())
    deck.error("optimizer.qk_clip", "conflicts with the norms of q and k", "0 for qwen3, olmo2 and model.qk_norm");
  options.parallel = ParallelOptions::read(deck, options.model, options.schedule);
  resolve_correction(deck, options);
  const MachineOptions& machine = options.machine;
  if (options.parallel.cost == ParallelOptions::Cost::seconds && !(machine.peak_tflops && machine.memory_bandwidth))
    deck.error("parallel.cost", "\"seconds\" needs machine.peak_tflops and machine.memory_bandwidth",
               "\"flops\" and \"elements\" without them");
  read_with_others(deck, options);
  require_spikes_fit(deck, options);
  require_form_fits(deck, options);
  require_rules_fit(deck, options);
  options.checkpoint = CheckpointOptions::read(deck);
  options.metrics = MetricsOptions::read(deck);
  require_rotations(deck, options);
  require_recordable(deck, options);
  if (options.optimizer.matrix) {
    options.optimizer.matrix->run_seed = options.run.seed;
    for (const auto check : find_matrix_kind(options.optimizer.kind)->checks) check(deck, options);
  }
  require_averages(deck, options);
  require_lookahead(deck, options);
  apply_transfer(deck, options);
  return options;
}

void require_training_keys(Deck& deck) {
  deck.require("run.steps", "the number of training steps");
  deck.require("data.source", "the training data, one [[data.source]] for each file");
}

}  // namespace sestina
