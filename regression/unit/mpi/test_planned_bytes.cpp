// What the plan says a rank needs is what the rank allocates, kind by kind, for every layout, optimizer and tp_update.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "parallel/exchange/rank_memory.hpp"
#include "parallel/plan/make_plan.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

using Bytes = std::map<std::string, double>;

// Live bytes of Kokkos by label, of what is allocated while one of these lives.
class Ledger {
 public:
  Ledger() {
    live().clear();
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, const char* label, const void*, std::uint64_t n) {
          add(label, static_cast<double>(n));
        });
    Kokkos::Tools::Experimental::set_deallocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, const char* label, const void*, std::uint64_t n) {
          add(label, -static_cast<double>(n));
        });
  }
  ~Ledger() {
    Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr);
    Kokkos::Tools::Experimental::set_deallocate_data_callback(nullptr);
  }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // By kind of RankMemory; a label that belongs to none is a kind of its own, which no plan knows.
  Bytes by_kind() const {
    static const std::map<std::string, std::string> kind_of = {{"weights", "weights"},
                                                               {"frozen", "weights"},
                                                               {"master", "master"},
                                                               {"gradient", "gradients"},
                                                               {"gradient_tree", "gradients"},
                                                               {"momentum", "optimizer"},
                                                               {"new_basis", "optimizer"},
                                                               {"moment_codes", "optimizer"},
                                                               {"moment_scales", "optimizer"},
                                                               {"new_root", "optimizer"},
                                                               {"new_order", "optimizer"},
                                                               {"second_moment", "optimizer"},
                                                               {"slow_momentum", "optimizer"},
                                                               {"average", "optimizer"},
                                                               {"ema", "optimizer"},
                                                               {"displacements", "optimizer"},
                                                               {"kept_weights", "optimizer"},
                                                               {"matrix_state", "optimizer"},
                                                               {"activations", "activations"},
                                                               {"kept_gradients", "activations"},
                                                               {"batch", "activations"},
                                                               {"workspace", "workspace"},
                                                               {"cosine", "workspace"},
                                                               {"sine", "workspace"},
                                                               {"squares", "workspace"},
                                                               {"weights_before", "workspace"},
                                                               {"update_sums", "workspace"},
                                                               {"weight_versions", "stash"},
                                                               {"vector_versions", "stash"},
                                                               {"link", "stash"},
                                                               {"velocity", "stash"},
                                                               {"drift", "stash"},
                                                               {"received", "exchanges"},
                                                               {"group", "exchanges"},
                                                               {"whole_gradients", "exchanges"},
                                                               {"whole_weights", "exchanges"}};
    Bytes kinds;
    for (const auto& [label, bytes] : live()) {
      const std::string words = label.substr(label.rfind("::") + 2), name = words.substr(0, words.find(' '));
      if (name == "table") continue;  // some numbers for each tensor, which no plan counts
      const auto kind = kind_of.find(name);
      kinds[kind == kind_of.end() ? label : kind->second] += bytes;
    }
    return kinds;
  }

 private:
  static void add(const char* label, double bytes) {  // called from any thread
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    live()[label] += bytes;
  }
  static Bytes& live() {
    static Bytes bytes;
    return bytes;
  }
};

Bytes by_kind(const ModelSize& size) {
  const auto bytes = [](std::size_t n) { return static_cast<double>(n); };
  return {{"weights", bytes(size.weights)},
          {"master", bytes(size.master)},
          {"gradients", bytes(size.gradients)},
          {"optimizer", bytes(size.optimizer)},
          {"activations", bytes(size.activations)},
          {"workspace", bytes(size.workspace)},
          {"stash", bytes(size.stash)},
          {"exchanges", bytes(size.exchanges)}};
}

// Relative difference of the worst kind. Kokkos counts 128 bytes for an allocation of nothing and rounds others up to
// 64, and a matrix's fields begin at cache lines: of matrices as small as these, and of the stages of a pipeline in one
// process, that is much, so two kibibytes are not looked at.
double worst_kind(const Bytes& planned, const Bytes& allocated, const std::string& what) {
  double worst = 0;
  for (const auto& [kind, bytes] : allocated) {
    const auto found = planned.find(kind);
    const double plan = found == planned.end() ? 0 : found->second, off = std::abs(plan - bytes);
    if (off <= 2048) continue;
    worst = std::max(worst, off / std::max(bytes, 1.0));
    EXPECT_LE(off, 0.01 * bytes) << what << ", rank " << world().rank() << ": " << kind << " planned " << plan
                                 << ", allocated " << bytes;
  }
  return worst;
}

template <class T>
double compare(const TrainingCase& run, const std::string& what) {
  Ledger ledger;
  TypedExecutor<Host, T> executor(Host(), make_plan({run.options, world().size()}), world());
  executor.initialise(5);
  const double exchanges = ledger.by_kind()["exchanges"];
  Trained result;
  train_steps(executor, run.options, 0, 6, result);
  EXPECT_EQ(ledger.by_kind()["exchanges"], exchanges) << what << ": an exchange took memory in a step";
  const RankMemory planned = rank_memory(executor.plan(), threads_of(Host()))[static_cast<std::size_t>(world().rank())];
  return worst_kind(by_kind(planned.size), ledger.by_kind(), what);
}

// The largest of all runs of a test, for reports.
class Largest {
 public:
  ~Largest() {
    world().all_reduce(&off_, 1, Reduction::max);
    if (world().rank() == 0) fmt::print("largest difference {:.2f} %\n", 100 * off_);
  }
  void add(double off) { off_ = std::max(off_, off); }

 private:
  double off_ = 0;
};

double compare(TrainingCase run, const std::string& what) {
  run.options.train.precision = TrainOptions::Precision::bf16;
  const double bf16_off = compare<bf16>(run, what + ", bf16");
  run.options.train.precision = TrainOptions::Precision::fp32;
  return std::max(bf16_off, compare<float>(run, what + ", fp32"));
}

// Ranks: PlannedBytes 1 2 4

TEST(PlannedBytes, OfEveryOptimizerOnEveryGrid) {
  Largest largest;
  for (const std::string& kind : every_kind_without_tp())
    for (const int tp : is_int8(kind) ? std::vector{1} : std::vector{1, 2})
      if (world().size() % tp == 0) largest.add(compare(grid_case(kind, tp), fmt::format("{}, tp {}", kind, tp)));
}

TEST(PlannedBytes, OfRefreshWorkers) {
  Largest largest;
  for (const std::string& kind : every_kind()) {
    const MatrixKind* row = find_matrix_kind(kind);
    if (row == nullptr || row->refresh_needs == nullptr) continue;
    TrainingCase run = grid_case(kind, world().size() % 2 == 0 ? 2 : 1);
    run.options.optimizer.refresh.asynchronous = true;
    run.options.optimizer.refresh.workers = 2;
    run.options.optimizer.matrix->refresh_staleness = 2;
    largest.add(compare(run, kind + " with two workers"));
  }
}

// Sides of 48 and 84 in blocks of at most 32: inline and by workers, at homes and cut shard by shard.
TEST(PlannedBytes, OfBlocks) {
  Largest largest;
  const int tp = world().size() % 2 == 0 ? 2 : 1;
  for (const std::string& kind : cut_kind_names()) {
    TrainingCase run = grid_case(kind, tp);
    run.options.optimizer.matrix->set("max_dim", 32);
    largest.add(compare(run, kind + " in blocks"));
    run.options.optimizer.refresh.asynchronous = true;
    run.options.optimizer.matrix->refresh_staleness = 2;
    run.options.parallel.tp_update = ParallelOptions::TpUpdate::blockwise;
    run.options.optimizer.per_head = true;
    largest.add(compare(run, kind + " in blocks of shards, with a worker"));
  }
}

TEST(PlannedBytes, OfEveryTpUpdate) {
  Largest largest;
  using TpUpdate = ParallelOptions::TpUpdate;
  if (world().size() % 2 != 0) return;  // pairs of ranks alone
  for (const auto update : {TpUpdate::duplicated, TpUpdate::distributed, TpUpdate::blockwise})
    for (const Family family : {Family::llama, Family::olmo2}) {
      TrainingCase run = grid_case("muon", 2, family);
      run.options.parallel.tp_update = update;
      largest.add(compare(run, fmt::format("tp_update {}", static_cast<int>(update))));
    }
  for (const char* kind : {"normuon", "adamuon"}) {
    TrainingCase run = grid_case(kind, 2);
    run.options.parallel.tp_update = TpUpdate::distributed;
    largest.add(compare(run, fmt::format("{} in shards", kind)));
  }
}

// Shares of whole matrices, blocks and divided ones, and what sums over their groups take.
TEST(PlannedBytes, OfShares) {
  Largest largest;
  for (const std::string kind : {"muon", "normuon", "adamuon", "soap", "shampoo", "galore"})
    for (const int tp : {1, 2}) {
      if (world().size() % tp != 0) continue;
      TrainingCase run = grid_case(kind, tp);
      run.options.parallel.partition = ParallelOptions::Partition::groups;
      run.options.metrics.updates_every = kind == "muon" ? 2 : 0;
      if (kind == "soap" || kind == "shampoo") run.options.optimizer.matrix->set("max_dim", 48);
      largest.add(compare(run, fmt::format("{} in shares, tp {}", kind, tp)));
    }
}

// Parts of an MLP that differ: two rows on the first rank and one on each other. A row, in all layers, is some
// kibibytes of weights, gradients and state, and more than 1 % of each.
TrainingCase uneven_bytes_case(const std::string& kind, int tp, Family family) {
  TrainingCase run = training_case(kind, family);
  run.options.model.hidden_size = 128;
  run.options.model.num_hidden_layers = 4;
  run.options.model.intermediate_size = tp + 1;
  run.options.model.vocab_size = 31;
  run.options.parallel.tp = tp;
  run.options.parallel.dp = world().size() / tp;
  return run;
}

TEST(PlannedBytes, OfUnevenParts) {
  using TpUpdate = ParallelOptions::TpUpdate;
  Largest largest;
  for (const int tp : {2, 4})
    for (const Family family : {Family::llama, Family::gpt}) {
      if (world().size() % tp != 0) continue;
      const std::string what = fmt::format("uneven, tp {}, {}", tp, name(family));
      for (const char* kind : {"adamw", "muon", "soap"})
        largest.add(compare(uneven_bytes_case(kind, tp, family), fmt::format("{}, {}", kind, what)));
      TrainingCase shares = uneven_bytes_case("muon", tp, family);
      shares.options.parallel.partition = ParallelOptions::Partition::groups;
      largest.add(compare(shares, "shares, " + what));
      for (const auto update : {TpUpdate::duplicated, TpUpdate::distributed, TpUpdate::blockwise}) {
        TrainingCase run = uneven_bytes_case("muon", tp, family);
        run.options.parallel.tp_update = update;
        if (update == TpUpdate::blockwise) run.options.parallel.shard = ParallelOptions::Shard::weights;
        largest.add(compare(run, fmt::format("tp_update {}, {}", static_cast<int>(update), what)));
      }
    }
}

TEST(PlannedBytes, OfMeansOfWeights) {
  Largest largest;
  for (const char* kind : {"muon", "schedule-free"})
    for (const int tp : {1, 2}) {
      if (world().size() % tp != 0) continue;
      TrainingCase run = grid_case(kind, tp);
      run.options.train.ema_tau = 10;
      largest.add(compare(run, fmt::format("{} with a mean, tp {}", kind, tp)));
      if (run.options.optimizer.adamw.averages()) continue;
      run.options.train.lookahead = {.factor = 0.3, .from = 0, .until = 100};
      largest.add(compare(run, fmt::format("{} that looks ahead, tp {}", kind, tp)));
    }
}

TEST(PlannedBytes, OfMeasuredUpdates) {
  Largest largest;
  using TpUpdate = ParallelOptions::TpUpdate;
  const int tp = world().size() % 2 == 0 ? 2 : 1;
  for (const auto update : {TpUpdate::home, TpUpdate::distributed, TpUpdate::blockwise}) {
    TrainingCase run = grid_case("muon", tp);
    run.options.parallel.tp_update = update;
    run.options.optimizer.per_head = update == TpUpdate::blockwise;
    run.options.metrics.updates_every = 2;
    largest.add(compare(run, fmt::format("measured updates, tp_update {}", static_cast<int>(update))));
  }
}

TEST(PlannedBytes, OfWhatPassesKeep) {
  Largest largest;
  for (const bool recompute : {false, true})
    for (const bool sequence_parallel : {false, true})
      for (const bool deterministic : {false, true}) {
        TrainingCase run = grid_case("muon", world().size() % 2 == 0 ? 2 : 1, Family::qwen3);
        run.options.train.recompute = recompute;
        run.options.parallel.sequence_parallel = sequence_parallel;
        run.options.run.deterministic = deterministic;
        largest.add(compare(run, fmt::format("recompute {}, sequence_parallel {}, deterministic {}", recompute,
                                             sequence_parallel, deterministic)));
      }
}

// On all ranks, on each rank its own, and on pairs of ranks the same ones; and parts of all of these.
TEST(PlannedBytes, OfExperts) {
  Largest largest;
  for (const char* kind : {"adamw", "muon", "soap"})
    for (const auto& [tp, ep] : {std::pair(1, 1), {1, 2}, {1, 4}, {2, 1}, {2, 2}, {4, 1}}) {
      if (world().size() % (tp * ep) != 0 || (std::string(kind) != "muon" && tp * ep > 2)) continue;
      TrainingCase run = training_case(kind, Family::qwen3_moe);
      run.options.model.num_experts = 8;
      run.options.model.shared_expert_intermediate_size = tp == 2 ? 16 : 0;
      run.options.parallel.tp = tp;
      run.options.parallel.dp = world().size() / tp;
      run.options.parallel.ep = ep;
      run.options.train.recompute = std::string(kind) == "muon";
      run.options.parallel.sequence_parallel = std::string(kind) != "soap";
      run.options.model.router_bias_rate = std::string(kind) == "soap" ? 0 : 0.01;
      largest.add(compare(run, fmt::format("{}, tp {}, experts over {}", kind, tp, ep)));
      if (ep == 1 || std::string(kind) == "soap") continue;
      run.options.parallel.shard =
          std::string(kind) == "muon" ? ParallelOptions::Shard::weights : ParallelOptions::Shard::gradients;
      run.options.model.num_hidden_layers = 5;
      largest.add(compare(run, fmt::format("{}, tp {}, experts over {} in turn", kind, tp, ep)));
      run.options.parallel.shard = ParallelOptions::Shard::state;
      run.options.parallel.partition = ParallelOptions::Partition::groups;
      if (std::string(kind) == "muon") largest.add(compare(run, fmt::format("shares, tp {}, experts over {}", tp, ep)));
      run.options.parallel.partition = ParallelOptions::Partition::replicated;
      for (const auto update : {ParallelOptions::TpUpdate::home, ParallelOptions::TpUpdate::duplicated}) {
        if (tp == 1 && update == ParallelOptions::TpUpdate::duplicated) continue;
        run.options.parallel.tp_update = update;
        largest.add(compare(run, fmt::format("{}, tp {}, copies of experts over {}", kind, tp, ep)));
      }
    }
}

TEST(PlannedBytes, OfGradientsAndWeightsInTurn) {
  Largest largest;
  using TpUpdate = ParallelOptions::TpUpdate;
  for (const auto shard : {ParallelOptions::Shard::gradients, ParallelOptions::Shard::weights})
    for (const int tp : {1, 2})
      for (const bool tied : {false, true}) {
        if (world().size() % tp != 0) continue;
        TrainingCase run = grid_case("muon", tp);
        run.options.model.num_hidden_layers = 5;
        run.options.model.tie_word_embeddings = tied;
        run.options.train.global_batch = 4 * run.options.parallel.dp;
        run.options.parallel.bucket_elements = 0;
        run.options.parallel.shard = shard;
        run.options.parallel.tp_update = tied ? TpUpdate::blockwise : TpUpdate::home;
        largest.add(compare(run, fmt::format("shard {}, tp {}, tied {}", static_cast<int>(shard), tp, tied)));
      }
}

TEST(PlannedBytes, OfNodeGroups) {
  Largest largest;
  for (const char* partition : {"balanced", "replicated"}) {
    TrainingCase run = grid_case("muon", 1);
    run.options.parallel.node_size = 2;
    run.options.parallel.partition = std::string(partition) == "balanced" ? ParallelOptions::Partition::balanced
                                                                          : ParallelOptions::Partition::replicated;
    largest.add(compare(run, fmt::format("nodes of two, {}", partition)));
  }
}

TEST(PlannedBytes, OfReplicasThatDrift) {
  Largest largest;
  for (const auto tp_update : {ParallelOptions::TpUpdate::home, ParallelOptions::TpUpdate::duplicated}) {
    TrainingCase run = grid_case("soap", world().size() == 4 ? 2 : 1);
    run.options.parallel.node_size = 2;
    run.options.parallel.tp_update = tp_update;
    run.options.parallel.partition = ParallelOptions::Partition::replicated;
    run.options.optimizer.refresh.asynchronous = true;
    run.options.optimizer.matrix->refresh_staleness = 2;
    run.options.optimizer.matrix->refresh_eager = true;
    largest.add(compare(run, fmt::format("replicas, tp_update {}", static_cast<int>(tp_update))));
  }
}

TEST(PlannedBytes, OfCorrectionsAndTies) {
  Largest largest;
  using Correction = ParallelOptions::DelayCorrection;
  for (const Correction kind : {Correction::none, Correction::prediction, Correction::pipemare}) {
    TrainingCase run = grid_case("adamw", 1);
    run.options.model.num_hidden_layers = 4;
    run.options.model.tie_word_embeddings = kind != Correction::pipemare;
    run.options.parallel.pp = 4;
    run.options.parallel.dp = 1;
    run.options.parallel.schedule = ParallelOptions::Schedule::async_1f1b;
    run.options.parallel.correction.kind = kind;
    run.options.parallel.stash =
        kind == Correction::pipemare ? ParallelOptions::Stash::saved : ParallelOptions::Stash::on;
    largest.add(compare(run, fmt::format("correction {}", static_cast<int>(kind))));
  }
}

TEST(PlannedBytes, OfFormsOfWeights) {
  Largest largest;
  using Schedule = ParallelOptions::Schedule;
  using Variant = LinearOptions::Variant;
  for (const std::string form : {"poet-x", "lora"})
    for (const Variant variant : {Variant::fast, Variant::xq})
      for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::zb_h1, Schedule::async_1f1b}) {
        if (form == "lora" && variant != Variant::fast) continue;
        TrainingCase run = grid_case("adamw", 1);
        LinearOptions& linear = run.options.model.linear;
        linear.form = form;
        linear.variant = variant;
        linear.block_size = 12;
        linear.merge_every = 4;
        linear.group_size = 64;
        linear.base_bits = schedule == Schedule::one_f_one_b ? 4 : 8;
        linear.residual = variant == Variant::xq && linear.base_bits == 4;
        run.options.model.num_hidden_layers = 4;
        run.options.parallel.pp = 4;
        run.options.parallel.dp = 1;
        run.options.parallel.schedule = schedule;
        largest.add(compare(
            run, fmt::format("{} {}, schedule {}", form, static_cast<int>(variant), static_cast<int>(schedule))));
      }
  for (const std::string kind : {"muon", "soap", "adamw"}) {
    TrainingCase run = grid_case(kind, 1);
    run.options.model.linear.form = "poet-x";
    run.options.model.linear.state_bits = kind == "adamw" ? 8 : 32;
    run.options.model.linear.block_size = 12;
    run.options.model.linear.one_block = kind != "soap";
    run.options.metrics.rotations_every = kind == "muon" ? 2 : 0;
    run.options.model.linear.merge_bound = kind == "soap" ? 0.5 : 0;  // their norms are measured in scratch as well
    largest.add(compare(run, "poet-x, rotations by " + kind));
  }
  if (world().size() % 2 != 0) return;
  TrainingCase run = grid_case("muon", 2);
  run.options.model.linear.form = "lora";
  largest.add(compare(run, "lora, tp 2"));
  for (const Variant variant : {Variant::fast, Variant::mem})
    for (const bool split : {true, false}) {
      TrainingCase poet = grid_case("adamw", 2);
      poet.options.model.linear.form = "poet-x";
      poet.options.model.linear.one_block = split;
      poet.options.model.linear.variant = variant;
      poet.options.model.linear.block_size = 6;
      poet.options.model.linear.shards = 2;
      poet.options.model.linear.merge_every = 4;
      poet.options.parallel.sequence_parallel = split;
      largest.add(compare(poet, fmt::format("poet-x {}, tp 2, {}", static_cast<int>(variant), split)));
    }
  for (const bool mixed : {false, true}) {  // blocks of 12 leave an MLP of two times 42 dense
    TrainingCase poet = grid_case("soap", 2);
    poet.options.model.linear.form = "poet-x";
    poet.options.model.linear.block_size = 12;
    poet.options.model.intermediate_size = mixed ? 84 : 96;
    poet.options.model.linear.dense_if_indivisible = mixed;
    poet.options.model.linear.shards = 2;
    largest.add(compare(poet, fmt::format("poet-x, rotations by soap, tp 2, mixed {}", mixed)));
  }
}

TEST(PlannedBytes, OfPipelines) {
  Largest largest;
  using Schedule = ParallelOptions::Schedule;
  using Stash = ParallelOptions::Stash;
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zb_h1, Schedule::async_1f1b})
    for (const Stash stash : {Stash::on, Stash::recompute, Stash::saved}) {
      if (stash != Stash::on && schedule != Schedule::async_1f1b) continue;
      TrainingCase run = grid_case("adamw", 1);
      run.options.model.num_hidden_layers = 4;
      run.options.parallel.pp = 4;
      run.options.parallel.dp = 1;
      run.options.parallel.schedule = schedule;
      run.options.parallel.stash = stash;
      largest.add(
          compare(run, fmt::format("schedule {}, stash {}", static_cast<int>(schedule), static_cast<int>(stash))));
    }
}

}  // namespace
}  // namespace sestina
