// The contents of a deck, section by section, as plain structs. Each reads its own section and leaves its resolved
// values (defaults included) in the deck, so that `deck.dump()` is the whole truth. Errors are collected by the deck.
// Keys, defaults and units: inputs/README.md. No Kokkos here.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/element_rule.hpp"
#include "core/deck/kinds.hpp"
#include "core/deck/model_config.hpp"
#include "core/deck/transfer.hpp"

namespace sestina {

class Deck;

struct RunOptions {
  std::string name = "run", dir;  // dir empty: runs/<name>
  std::uint64_t seed = 1;
  std::int64_t steps = 0;  // total updates; required for train
  bool deterministic = false;
  double walltime = 0;  // seconds, 0 = none (deck: "hh:mm:ss" or seconds)
  std::vector<std::string> stop_signals = {"TERM", "USR1", "USR2"};
  double abort_timeout = 60;    // seconds
  double start_timeout = 1200;  // seconds, until training begins
  enum class OnNonfinite { stop, skip } on_nonfinite = OnNonfinite::stop;
  enum class OnSpike { off, note, recompute, rollback } on_spike = OnSpike::off;
  int spike_window = 100;    // updates whose values make the bound (core/spike_bound.hpp)
  double spike_factor = 10;  // robust standard deviations between their median and the bound
  int max_rollbacks = 3;
  bool holds_updates() const { return on_spike == OnSpike::recompute || on_spike == OnSpike::rollback; }
  enum class Space { device, host } space = Space::device;
  int threads = 0;  // 0: all cores of the process
  // Updates between two in which a micro-batch is computed again and compared; 0: never.
  std::int64_t audit_every = 0;
  enum class OnAudit { recompute, stop } on_audit = OnAudit::recompute;     // what follows one that was wrong for once
  enum class CheckSpeed { off, warn, stop } check_speed = CheckSpeed::off;  // of the machine, at the start
  // When kernels are compared with their plain references at the start (app/watch/kernel_checks.hpp).
  enum class Check { first, always, off } check = Check::first;
  static RunOptions read(Deck&);
};
// Returns the memory of the execution space that the word stands for (core/machine_speed.cpp, which knows the spaces).
MemorySpace memory_in(RunOptions::Space);

// [[machine.update]]: the measured time of updates of one matrix (`bench optimizer --machine`).
struct MeasuredUpdate {
  std::string kind;  // as optimizer.kind
  bool bf16 = false;
  std::int64_t rows = 0, cols = 0;
  double gflop = 0;                   // of an update's products; other keys of the kind differ in it
  double seconds = 0, refresh_s = 0;  // of an update without refreshes; of a refresh of all its sides
  std::string matmul_precision = "fp32", ns_precision = "auto";  // of optimizer
};
struct MachineOptions {  // of the target, for plan's estimates and MFU; null = not known
  std::optional<double> peak_tflops, memory_bandwidth, network_bandwidth, disk_bandwidth;  // TFLOP/s, GB/s
  std::optional<double> host_bandwidth;       // GB/s between a device and host memory, both ways together
  std::optional<double> worker_gflops;        // GFLOP/s of a worker on the host at refreshes
  std::optional<double> memory, host_memory;  // GB of a device, of a node
  std::string host;                           // where updates were measured
  std::vector<MeasuredUpdate> update;
  static MachineOptions read(Deck&);
};

struct DataSource {
  enum class Format { megatron, llmc, npy, text, jsonl } format = Format::text;
  std::string path;  // absolute after reading (relative ones: to the deck's folder)
  double weight = 1;
  std::string text_key = "text";  // jsonl: the member of each line that holds the text
  double invalid_limit = 0.01;    // jsonl: share of the lines that may be skipped as invalid
};
// Returns whether the format is text, which goes through a tokenizer when it is opened.
inline bool is_text(DataSource::Format format) {
  return format == DataSource::Format::text || format == DataSource::Format::jsonl;
}
bool is_jsonl_name(std::string_view path);  // .jsonl, .ndjson, .json, then .gz or .zst or neither, in either case
struct DataOptions {
  int sequence_length = 0;             // default: max_position_embeddings of the model, at most 1024
  std::string tokenizer;               // empty: text is read as bytes (vocabulary 256)
  bool bytes_chosen = false;           // data.tokenizer = "bytes": whatever the vocabulary is
  bool tokenizer_of_model = false;     // the tokenizer lies in the folder of model.from_hf
  std::string model_folder;            // model.from_hf, or a checkpoint's copy, whose files name tokens; empty: none
  std::string begin_token, end_token;  // "" = as the files next to the tokenizer and the model name them
  bool shuffle = true, mask_documents = false;
  double validation_fraction = 0;  // held out from the end of each source when no validation source is given
  std::vector<DataSource> source, validation;
  bool reads_text() const;   // some source is text or JSONL
  bool reads_bytes() const;  // some source is text and there is no tokenizer
  static DataOptions read(Deck&, const ModelConfig&);
};

// EMA-Nesterov (core/optimizer/lookahead.hpp): weights move on along the mean of their displacements before the passes
// of updates from < t <= until.
struct LookaheadOptions {
  double factor = 0, ema = 0.99;  // 0: off
  std::int64_t from = 300, until = 0;
};
struct TrainOptions {
  int global_batch = 8, micro_batch = 0;  // sequences; micro_batch 0 = global_batch
  enum class Precision { fp32, bf16 } precision = Precision::fp32;
  double clip_norm = 1.0;  // 0 = no clipping
  bool recompute = false;
  bool graphs = false;           // a device's passes are recorded, and then started by one call (core/model/pass_graphs.hpp)
  std::int64_t logit_bytes = 0;  // most bytes of logits at a time; 0: what logit_bytes_of says
  double ema_tau = 0;  // the mean of the weights takes in 1 / ema_tau of them with each update; 0: none is kept
  LookaheadOptions lookahead;
  static TrainOptions read(Deck&);
};

struct ScheduleOptions {
  enum class Kind { cosine, linear, wsd, power, constant } kind = Kind::cosine;
  double lr = 1e-3;
  std::int64_t warmup_steps = 0, steps = 0, decay_steps = 0;  // steps 0 = run.steps
  double min_lr_ratio = 0.1;
  double power = 1.2;  // of kind = "power"
  TransferOptions transfer;
  bool falls_late() const { return kind == Kind::wsd || kind == Kind::power; }  // over decay_steps
  static ScheduleOptions read(Deck&, const RunOptions&);
};

struct OptimizerGroup {  // [[optimizer.group]]: later groups win
  std::string match;     // glob on HF names
  std::optional<double> lr_multiplier, weight_decay;
  std::optional<std::string> kind;          // the elementwise rule or optimizer.kind: overrides the routing
  std::optional<double> beta1, beta2, eps;  // of the elementwise rule, where it updates
};
struct RefreshOptions {         // [optimizer.refresh]; every: MatrixOptions
  bool automatic = false;       // every = "auto": as often as workers can (parallel/plan/refresh_budget.hpp)
  bool fits_staleness = false;  // staleness = "auto": MatrixOptions has the most that it may be
  bool stagger = false;         // matrix i at updates with (t + i) mod every = 0, not all at once
  enum class Budget { uniform, stage_aware, reversed } budget = Budget::uniform;  // parallel/plan/refresh_budget.hpp
  double budget_power = 1;
  std::int64_t count = 0, window = 0;  // one stage's share: refreshes in so many updates; 0: one in `every`
  std::int64_t max_failures = 3;       // in a row, of one factor, before the run stops
  bool asynchronous = false;           // mode = "async"; when results are put in place: MatrixOptions
  bool chooses_executor = false;       // executor = "auto": by matrix (parallel/plan/refresh_budget.hpp)
  int workers = 1, priority = 0;       // threads in addition to those that compute; added to their nice value
  std::vector<int> cores;              // cores that they may run on; empty: any
  std::int64_t coherence_every = 0;    // updates that replicas may drift, see parallel/plan/coherence.hpp
  double coherence_drift = 0;          // relative distance of weights that replicas may drift; 0: no bound
  double timeout = 45;                 // seconds that an update waits for a result that must be there
  // Tiers (MatrixOptions): the folder of the store on NVMe ("": in the run directory), the largest number of bytes of
  // preconditioners at a time in the memory of a device (0: as few as work takes), in that of the host (0: the same,
  // and any where a device computes) and in the store (0: any), and transfers at a time.
  std::string path;
  std::int64_t device_bytes = 0, host_bytes = 0, nvme_bytes = 0;
  int queue_depth = 32;
};
struct OptimizerOptions {
  std::string kind = "adamw";
  bool reset_missing = false;               // on_missing = "reset"
  AdamWOptions adamw;                       // for an elementwise kind, else [optimizer.scalar]
  double lr = 0;                            // peak for optimizer.kind; the one that is logged
  double weight_decay = 0;                  // for the matrices
  UpdateRules rules;                        // what becomes of updates
  UpdateSchedule schedule;                  // numbers that change with the updates
  RateTransfer transfer;                    // of the rates of the deck to the model (schedule.transfer)
  double qk_clip = 0, qk_clip_alpha = 0.5;  // largest attention score allowed (0: any); share that q takes
  bool per_head = false;                    // q, k, v as one matrix per head
  std::optional<MatrixOptions> matrix;      // the kind's own keys; empty for elementwise kinds
  RefreshOptions refresh;
  std::vector<OptimizerGroup> group;
  int state_bits = 32;             // bits of AdamW's moments of matrices
  std::int64_t state_block = 256;  // 8 bits: columns that share a scale
  Tier state_tier = Tier::device;  // of moments and momenta of all tensors but vectors; budgets and store: `refresh`
  bool has_tier(Tier tier) const { return state_tier == tier || (matrix && matrix->has_tier(tier)); }
  // Returns whether some state lies elsewhere between its uses.
  bool pages_any(MemorySpace memory) const {
    return leaves(memory, state_tier) || (matrix && matrix->pages_any(memory));
  }
  // Returns the threads in addition to those that compute; none where results are not late.
  int refresh_workers() const { return matrix && matrix->refresh_staleness > 0 ? refresh.workers : 0; }
  static OptimizerOptions read(Deck&, const ScheduleOptions&);
};

// Ranks, and the rule that assigns each matrix an owner (core/layout/plan.hpp).
struct ParallelOptions {
  int dp = 1, tp = 1, pp = 1;
  // groups: several data-parallel ranks may update parts of one matrix (parallel/plan/matrix_groups.hpp).
  enum class Partition { optimal, balanced, layerwise, start_index, replicated, groups } partition = Partition::optimal;
  enum class Cost { flops, elements, seconds } cost = Cost::flops;  // what is balanced
  double alpha = 1;                                        // balanced: 0 equal shards in each bucket, 1 equal loads
  std::int64_t bucket_elements = 0;                        // 0: plan chooses
  std::int64_t micro_group_bytes = std::int64_t{1} << 28;  // whole gradients that a host takes in at a time
  int node_size = 0;                                       // ranks of a node; 0: as the machine says
  enum class TpUpdate { home, duplicated, distributed, blockwise } tp_update = TpUpdate::home;
  bool sequence_parallel = true;  // tensor-parallel ranks split the rows of the residual stream
  // Pipelines: pp stages on any number of pipeline ranks that divides it (parallel/plan/pipeline_schedule.hpp).
  enum class Schedule { one_f_one_b, gpipe, interleaved, zb_h1, async_1f1b } schedule = Schedule::one_f_one_b;
  enum class Placement { block, round_robin } placement = Placement::block;
  enum class Stash { on, recompute, saved } stash = Stash::on;  // which weights an asynchronous backward pass sees
  enum class ClipScope { global, stage, group, global_lagged, matrix } clip_scope = ClipScope::global;
  enum class Reduce { owners, all } reduce = Reduce::owners;  // who gets the sums of gradients
  bool overlap_updates = false;                               // matrices are updated as their gradients come
  std::vector<int> stage_layers;                              // number of layers of each stage; empty: even parts
  int delay_scale = 1;           // asynchronous: forwards ahead of a stage, times the stages after it
  std::int64_t drain_every = 0;  // updates, 0 = never
  enum class DelayCorrection { none, pipedream_lr, nesterov, pipemare, prediction, dc_asgd };
  struct Correction {  // what a stage does about its delay (core/delay.hpp)
    DelayCorrection kind = DelayCorrection::none;
    std::int64_t steps = 7000;  // pipedream-lr, pipemare: updates until the rate is whole
    double decay = 0.135;       // pipemare: decay of the mean movement, over the delay
    std::int64_t warmup = 0;    // pipemare: synchronous updates before all others
    double lambda = 0;          // dc-asgd
  } correction;
  int ep = 1;              // expert-parallel ranks: of the dp ranks of a group, ep in a row hold all experts together
  double expert_room = 0;  // rows of tokens that a rank has room for at its experts, over the mean; 0: all there can be
  enum class Shard { state, gradients, weights } shard = Shard::state;  // what data-parallel ranks keep a part of
  bool is_async() const { return pp > 1 && schedule == Schedule::async_1f1b; }
  std::int64_t ranks() const { return std::int64_t{dp} * tp * pp; }
  static ParallelOptions read(Deck&, const ModelConfig&, const ScheduleOptions&);
};
const char* name(ParallelOptions::Schedule);  // as the deck names it
const char* name(ParallelOptions::Stash);
const char* name(ParallelOptions::DelayCorrection);
// Return whether all data-parallel ranks of a stage, or all ranks of a tensor-parallel group, update the same matrices.
bool replicated_over_dp(const ParallelOptions&);
bool replicated_over_tp(const ParallelOptions&);
// Returns whether such replicas need synchronisation: not where all ranks see results of refreshes at the same update.
bool replicas_drift(const ParallelOptions&, const OptimizerOptions&);
// Returns whether no rank keeps weights as they are computed with, but for the blocks whose turn it is
// (parallel/plan/block_turns.hpp). One rank by itself does so where it saves memory: where weights are rounded.
inline bool keeps_masters_alone(const ParallelOptions& parallel, const TrainOptions& train) {
  return parallel.shard == ParallelOptions::Shard::weights &&
         (parallel.dp > 1 || train.precision == TrainOptions::Precision::bf16);
}
// Returns what keeps a model from being split over tp ranks; empty when nothing does.
std::vector<ModelDefect> tensor_parallel_defects(const ModelConfig&, int tp);

// Returns the first row of up_proj, which is a column of down_proj, of a tensor-parallel rank; of rank tp the number of
// all. Parts differ by one unit at most, and rank 0 has the most: a unit is 8 rows, which keeps products aligned, where
// these make up intermediate_size and each rank gets some, and else 1.
std::int64_t first_of_mlp(const ModelConfig&, int tp, int tp_rank);

struct CheckpointOptions {
  std::int64_t every = 0;       // steps, 0 = only the final one
  int keep = 3;                 // newest to keep, 0 = all
  std::int64_t keep_every = 0;  // checkpoints of steps that it divides stay for good, 0 = none
  bool async = true;
  std::string staging_dir;   // empty: none
  bool verify_full = false;  // verify = "full"
  bool drains = false;       // pipeline = "drain": an asynchronous pipeline is empty at a save
  static CheckpointOptions read(Deck&);
};

struct MetricsOptions {
  std::int64_t every = 10, eval_every = 0, tensors_every = 0, updates_every = 0, rotations_every = 0;  // steps, 0 = off
  double rotation_bound = 0.5;  // of ||Q||_2, above which the run notes it; 0 = none
  std::int64_t trace = 0;       // updates in trace.json, 0 = none
  int eval_batches = 16;        // micro-batches an evaluation reads
  bool tensorboard = false;
  static MetricsOptions read(Deck&);
};

// The number of threads that the pool of Kokkos' OpenMP space has room for; Kokkos does not tell it.
inline constexpr int max_threads = 512;

// All sections, read in order; call deck.finish() afterwards to have all errors thrown at once.
struct Options {
  RunOptions run;
  MachineOptions machine;
  ModelConfig model;
  DataOptions data;
  TrainOptions train;
  ScheduleOptions schedule;
  OptimizerOptions optimizer;
  ParallelOptions parallel;
  CheckpointOptions checkpoint;
  MetricsOptions metrics;
  static Options read(Deck&);
};

// Collects an error for each key that training cannot do without: run.steps and [[data.source]]. Call before
// deck.finish().
void require_training_keys(Deck&);

// Checks what parallel.delay_correction requires of the optimizer, and sets momentum_decay, which is the optimizer's:
// Nesterov's look-ahead.
void resolve_correction(Deck&, Options&);

// Collects errors for what can be planned but not trained. Where train.micro_batch is the whole batch it becomes the
// largest divisor of train.global_batch that gives every data-parallel rank one. Call before deck.finish().
void require_trainable(Deck&, Options&);
// Returns the largest number of sequences at a time, train.micro_batch at most (0: all), that divides
// train.global_batch and gives each of dp ranks a micro-batch; 1 where nothing does.
int shared_micro_batch(const TrainOptions&, int dp);
// Collects an error where tensor parallelism would cut a block of moments in 8 bits. Call before deck.finish().
void require_whole_blocks(Deck&, const Options&);
// Collects an error where moments with a tier of their own would be those of shards that several ranks update together.
void require_state_tier(Deck&, const Options&);

// Collects an error for more than one rank where the model runs in one process. Call before deck.finish().
void require_one_rank(Deck&, const ParallelOptions&);

}  // namespace sestina
