// Prints `sestina plan` as text.
#include <fmt/core.h>

#include <algorithm>

#include "app/verbs/run_plan.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/transfer_factors.hpp"
#include "kernels/base/host_name.hpp"
#include "parallel/exchange/traffic.hpp"
#include "parallel/plan/block_turns.hpp"
#include "parallel/plan/matrix_groups.hpp"
#include "parallel/plan/update_table.hpp"

namespace sestina {
namespace {

constexpr double bar_width = 40;

std::string with_unit(double value, const char* unit) {
  static constexpr const char* prefixes[] = {"", "k", "M", "G", "T", "P", "E", "Z"};
  std::size_t i = 0;
  while (value >= 1000 && i + 1 < std::size(prefixes)) {
    value /= 1000;
    ++i;
  }
  return fmt::format("{:.4g} {}{}", value, prefixes[i], unit);
}

std::string time_text(double seconds) {
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 120) return fmt::format("{:.3g} s", seconds);
  const auto minutes = static_cast<long long>(seconds / 60);
  return minutes < 120 ? fmt::format("{} min", minutes) : fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

std::string bar(double part) { return std::string(static_cast<std::size_t>(bar_width * part + 0.5), '#'); }

void print_sizes(const RunPlan& run) {
  const Options& o = run.options;
  const ModelConfig& m = o.model;
  fmt::print("model       {}{}, {} layers, hidden {}, intermediate {}, heads {} ({} key/value) of {}, vocabulary {}\n",
             name(m.family), m.preset.empty() ? "" : " (" + m.preset + ")", m.num_hidden_layers, m.hidden_size,
             m.intermediate_size, m.num_attention_heads, m.num_key_value_heads, m.head_dim, m.vocab_size);
  fmt::print("parameters  {} in {} tensors\n", with_unit(static_cast<double>(parameter_count(m)), ""),
             sum_over_tensors(m, [](const TensorSpec&) { return 1; }));
  if (m.has_experts())
    fmt::print("experts     {} in each layer, {} for a token, intermediate {}: a token passes {} parameters\n",
               m.num_experts, m.num_experts_per_tok, m.moe_intermediate_size,
               with_unit(static_cast<double>(active_count(m)), ""));
  if (!m.linear.is_dense())
    fmt::print("weights     {}: {} parameters are trained\n", m.linear.form,
               with_unit(static_cast<double>(trainable_count(m)), ""));
  const BatchShare batch = largest_share(run.plan.input);
  fmt::print("step        {} sequences of {} tokens, {} at a time{}, {}{}\n", o.train.global_batch,
             o.data.sequence_length, batch.micro_batch, o.parallel.dp > 1 ? " on each data-parallel rank" : "",
             o.train.precision == TrainOptions::Precision::bf16 ? "bf16" : "fp32",
             o.train.recompute ? ", recomputed activations" : "");
  fmt::print("work        {} per token, {} per step\n\n", with_unit(run.flops_per_token, "FLOP"),
             with_unit(run.flops_per_step, "FLOP"));
}

std::string load_text(std::int64_t load, ParallelOptions::Cost cost) {
  constexpr double nano = 1e-9;
  const auto value = static_cast<double>(load);
  return cost == ParallelOptions::Cost::seconds ? time_text(nano * value)
                                                : with_unit(value, cost == ParallelOptions::Cost::flops ? "FLOP" : "");
}

const char* name_of(ParallelOptions::Partition partition) {
  static constexpr const char* names[] = {"optimal", "balanced", "layerwise", "start-index", "replicated", "groups"};
  return names[static_cast<int>(partition)];
}

void print_ratio(const char* what, const LoadRatio& load) {
  fmt::print("  {:28}{:8.4f}   lower bound {:.4f}, gap {:.3f} %\n", what, load.ratio, load.bound, 100 * load.gap());
}

// A line of the table: ranks begin to end - 1 and what the least and the most loaded of them have.
struct LoadRow {
  std::size_t begin, end;
  std::int64_t least, most;
};

// Makes a row of each rank, or of several ranks where they are many; neighbours with the same loads share a row.
std::vector<LoadRow> load_rows(const std::vector<std::int64_t>& load) {
  constexpr std::size_t most_rows = 16;
  const std::size_t each = (load.size() + most_rows - 1) / most_rows;
  std::vector<LoadRow> rows;
  for (std::size_t begin = 0; begin < load.size(); begin += each) {
    const std::size_t end = std::min(begin + each, load.size());
    const auto [least, most] = std::minmax_element(load.begin() + static_cast<std::ptrdiff_t>(begin),
                                                   load.begin() + static_cast<std::ptrdiff_t>(end));
    if (!rows.empty() && rows.back().least == *least && rows.back().most == *most)
      rows.back().end = end;
    else
      rows.push_back({begin, end, *least, *most});
  }
  return rows;
}

void print_loads(const RunPlan& run) {
  std::vector<std::int64_t> load;
  for (const StagePlan& stage : run.plan.stages)
    load.insert(load.end(), stage.rank_cost.begin(), stage.rank_cost.end());
  const auto largest = static_cast<double>(std::max<std::int64_t>(*std::max_element(load.begin(), load.end()), 1));
  const auto cost = run.options.parallel.cost;
  for (const LoadRow& row : load_rows(load)) {
    const bool one = row.begin + 1 == row.end;
    const std::string who =
        one ? fmt::format("rank {}", row.begin) : fmt::format("ranks {}-{}", row.begin, row.end - 1);
    const auto low = static_cast<double>(row.least), high = static_cast<double>(row.most);
    fmt::print("  {:16}{:>14}{:>18}  {}{}\n", who, load_text(row.most, cost),
               row.least == row.most ? "" : "from " + load_text(row.least, cost), bar(low / largest),
               std::string(bar(high / largest).size() - bar(low / largest).size(), '-'));
  }
}

void print_balance(const RunPlan& run) {
  const Plan& plan = run.plan;
  if (plan.ranks() == 1) return;
  const ParallelOptions& parallel = run.options.parallel;
  fmt::print("ranks       dp {} x tp {} x pp {} = {}{}, partition {}{}\n\n", plan.dp, plan.tp, plan.pp, plan.ranks(),
             parallel.ep > 1 ? fmt::format(", experts over ep {}", parallel.ep) : "", name_of(parallel.partition),
             gradients_in_turn(parallel) || weights_in_turn(plan.input)
                 ? fmt::format(", shard {}", name(parallel.shard))
                 : "");
  std::size_t matrices = 0, parts = 0;
  for (const StagePlan& stage : plan.stages)
    for (std::size_t i = 0; i < stage.specs.size(); ++i) {
      if (stage.owner[i] == scalar_tensor) continue;
      ++matrices;
      parts += matrix_parts(stage.specs[i], run.options.optimizer).size();
    }
  if (matrices == 0) {
    fmt::print("no matrix optimizer: all tensors are split evenly by rows\n\n");
    return;
  }
  fmt::print("load of {} matrices{}, max / mean\n", matrices,
             parts > matrices ? fmt::format(" in {} heads or blocks", parts) : "");
  print_ratio("data-parallel ranks", plan.dp_cost);
  fmt::print("  {:28}{:8.4f}\n", "data-parallel, elements", plan.dp_elements.ratio);
  if (plan.dp > 1) print_ratio("received of each bucket", plan.dp_received);
  if (plan.tp > 1) print_ratio("tensor-parallel home ranks", plan.home_cost);
  if (run.options.parallel.partition == ParallelOptions::Partition::groups) {
    print_ratio("all ranks", plan.machine_cost);
    for (const std::string& line : group_lines(plan)) fmt::print("  {}\n", line);
  }
  print_loads(run);
  fmt::print("\n");
}

// Prints schedule, bubble and depth of the pipeline, with a drawing as wide as a terminal.
void print_pipeline(const RunPlan& run) {
  if (run.plan.pp == 1) return;
  constexpr int columns = 88;
  const PipelineSchedule& schedule = run.plan.schedule;
  const bool is_async = run.options.parallel.is_async();
  fmt::print("pipeline    {} stages, {}: ", run.plan.pp, name(run.options.parallel.schedule));
  if (is_async)
    fmt::print("no bubble once it is full\n");
  else
    fmt::print("idle {:.1f} % of an update of {} micro-batches\n", 100 * schedule.bubble, run.plan.pipe.micros);
  fmt::print("  {:8}{:>10}{:>20}{}\n", "stage", "layers", "in flight, most", is_async ? "    updates of delay" : "");
  for (int s = 0; s < run.plan.pp; ++s) {
    const auto i = static_cast<std::size_t>(s);
    const LayerRange layers = run.plan.stages[i].layers;
    fmt::print("  {:<8}{:>10}{:>20}{}\n", s,
               layers.end - layers.begin == 1 ? std::to_string(layers.begin)
                                              : fmt::format("{}-{}", layers.begin, layers.end - 1),
               schedule.slots[i], is_async ? fmt::format("{:>20}", update_delay(run.plan.pipe, s)) : "");
  }
  if (const std::int64_t window = run.plan.stages[0].refresh_window; window > 0) {
    std::vector<std::int64_t> counts;
    for (const StagePlan& stage : run.plan.stages) counts.push_back(stage.refreshes);
    fmt::print("  refreshes of each matrix in {} updates, by stage: {}\n", window, fmt::join(counts, ", "));
  }
  fmt::print("  time goes right, one row for each rank: 0-9 forward of a micro-batch, a-z backward{}\n",
             run.options.parallel.schedule == ParallelOptions::Schedule::zb_h1 ? ", A-Z weight gradients" : "");
  for (const std::string& row : draw(schedule, std::min(columns, static_cast<int>(schedule.span))))
    fmt::print("  {}\n", row);
  fmt::print("\n");
}

void print_updates(const RunPlan& run) {
  fmt::print("updates\n");
  for (const std::string& line : table_lines(update_table(run.plan))) fmt::print("  {}\n", line);
  for (const std::string& line : transfer_lines(run.options)) fmt::print("  {}\n", line);
  fmt::print("\n");
}

void print_refreshes(const RunPlan& run) {
  if (const auto& matrix = run.options.optimizer.matrix; matrix && matrix->refresh_drift > 0)
    fmt::print("refreshes   by drift: every {} updates at most, which is what is estimated\n\n", matrix->refresh_every);
  if (run.refresh_executors) {
    fmt::print("refreshes   {}, at the rates of [machine]\n", to_text(*run.refresh_executors));
    for (const std::string& line : table_lines(*run.refresh_executors)) fmt::print("  {}\n", line);
    fmt::print("\n");
  } else if (run.options.optimizer.refresh.chooses_executor) {
    fmt::print(
        "refreshes   by workers or in the update, chosen at the start; not known without machine.peak_tflops and "
        "machine.worker_gflops\n\n");
  }
  if (run.refresh_lag)
    fmt::print("refreshes   {}{}, at the rates of [machine]; a run measures its own at its start\n\n",
               to_text(*run.refresh_lag), run.refresh_lag->is_enough ? "" : ", which is less than workers need");
  else if (run.options.optimizer.refresh.fits_staleness)
    fmt::print("refreshes   as late as workers need, measured at the start; not known without machine.peak_tflops\n\n");
  if (!run.options.optimizer.refresh.automatic) return;
  if (run.refresh_periods)
    fmt::print("refreshes   {}, at the rates of [machine]; a run measures its own at its start\n\n",
               to_text(*run.refresh_periods));
  else
    fmt::print("refreshes   as often as workers can, measured at the start; not known without machine.peak_tflops\n\n");
}

void print_collectives(const RunPlan& run) {
  if (run.sent.empty()) return;
  const auto column = [](const std::string& text) { return fmt::format("{:>16}", text); };
  fmt::print("{:42}{:>8}{:>14}{:>16}{}\n", "collectives of a step", "calls", "buffers", "sent by a rank",
             run.options.parallel.node_size > 0 ? column("between nodes") : "");
  for (const Collective& c : run.sent) {
    const auto between = between_nodes_bytes(c, run.options);
    fmt::print("  {:7} {:14} {:17}{:>9}{:>14}{:>16}{}\n", c.group, c.operation, c.what, c.count,
               with_unit(static_cast<double>(c.bytes), "B"), with_unit(sent_bytes(c, run.plan), "B"),
               between ? column(with_unit(*between, "B")) : "");
  }
  fmt::print("\n");
}

// Prints what runs next to the update: what workers compute for it, and what goes between a device and its host.
void print_workers(const RunPlan& run) {
  if (!run.refresh_flops) return;
  const int workers = run.options.optimizer.refresh_workers();
  fmt::print("workers     {} of refreshes in an update, at most, for the {} worker{} of a rank\n",
             with_unit(*run.refresh_flops, "FLOP"), workers, workers == 1 ? "" : "s");
  if (run.refresh_ratio && run.plan.input.parallel.ranks() > 1)
    fmt::print("            {:.4f} of the mean of all ranks\n", *run.refresh_ratio);
  if (run.link.refreshes > 0)
    fmt::print("            {} of snapshots and results between device and host in an update\n",
               with_unit(run.link.refreshes, "B"));
  fmt::print("\n");
}

void print_coherence(const RunPlan& run) {
  const CoherencePlan& coherence = run.plan.coherence;
  if (coherence.blocks == 0) return;
  const auto bytes = [](double n) { return with_unit(n, "B"); };
  fmt::print("coherence   {} replicated matrices, in the mean {:.4g} synchronisations of each in an update\n",
             coherence.blocks, coherence.synchronisations);
  if (coherence.sketches > 0)
    fmt::print(
        "            and those that drift starts; all ranks send {} for a look at the drift of all, in {:.4g} of "
        "the updates at most\n",
        bytes(static_cast<double>(coherence.sketch.sent)), coherence.sketches);
  fmt::print("            all ranks send {} for one of all, {} of it between nodes; {} per update in the mean\n\n",
             bytes(static_cast<double>(coherence.synchronisation.sent)),
             bytes(static_cast<double>(coherence.synchronisation.between_nodes)), bytes(coherence.bytes_per_update()));
}

void print_memory(const RunPlan& run) {
  const auto by_total = [](const RankMemory& a, const RankMemory& b) { return a.total() < b.total(); };
  const RankMemory& fullest = *std::max_element(run.memory.begin(), run.memory.end(), by_total);
  const RankMemory& emptiest = *std::min_element(run.memory.begin(), run.memory.end(), by_total);
  const bool many = run.memory.size() > 1;
  const auto kinds = kinds_of(fullest, run.options.train.precision == TrainOptions::Precision::fp32);
  std::size_t largest = 1;
  for (const auto& kind : kinds) largest = std::max(largest, kind.bytes);
  fmt::print("{}\n", many ? fmt::format("memory of the rank that needs most; the least is {}",
                                        with_unit(static_cast<double>(emptiest.total()), "B"))
                          : "memory");
  for (const auto& kind : kinds)
    if (kind.bytes > 0)
      fmt::print("  {:16}{:>12}  {}\n", kind.what, with_unit(static_cast<double>(kind.bytes), "B"),
                 bar(static_cast<double>(kind.bytes) / static_cast<double>(largest)));
  fmt::print("  {:16}{:>12}\n", "total", with_unit(static_cast<double>(run.needed_bytes), "B"));
  if (fullest.nvme > 0)
    fmt::print("  {:16}{:>12}  of optimizer state; {} to and from it in an update\n", "on NVMe",
               with_unit(static_cast<double>(fullest.nvme), "B"), with_unit(fullest.nvme_moved, "B"));
  if (fullest.link_moved > 0)
    fmt::print("  {:16}{:>12}  of optimizer state between device and host in an update\n", "host link",
               with_unit(fullest.link_moved, "B"));
  if (fullest.outside_tiers > 0)
    fmt::print("  {:16}{:>12}  of preconditioners, always, by optimizer.refresh.tier\n", "in memory",
               with_unit(static_cast<double>(fullest.outside_tiers), "B"));
  for (const RunPlan::Memory& memory : run.compared)
    fmt::print("  {} {}: {} of {}\n", memory.fits() ? "fits" : "DOES NOT FIT", memory.name,
               with_unit(static_cast<double>(memory.needed), "B"),
               with_unit(static_cast<double>(memory.available), "B"));
  if (run.compared.empty()) fmt::print("  {:16}{:>12}  (set machine.memory, machine.host_memory)\n", "fits", "unknown");
  fmt::print("\n");
}

// Prints the source of the seconds of updates.
void print_measured(const RunPlan& run) {
  const MachineOptions& machine = run.options.machine;
  const bool by_seconds = run.options.parallel.cost == ParallelOptions::Cost::seconds;
  if (run.measured.shapes == 0 || (!by_seconds && machine.update.empty())) return;
  const auto& [shapes, measured] = run.measured;
  if (measured == 0)
    fmt::print(
        "updates     {}: seconds are those of products at the machine's peak; `bench optimizer --machine FILE` "
        "measures\n",
        machine.update.empty() ? "none was measured" : "none was measured with this kind, keys and precision");
  else
    fmt::print("updates     {} of {} shapes as measured{}{}\n", measured, shapes,
               machine.host.empty() ? "" : " on " + machine.host,
               measured < shapes ? "; others by their products, at the rate of those" : "");
  if (!machine.host.empty() && machine.host != host_name())
    fmt::print("            this machine is another one: {}\n", host_name());
  fmt::print("\n");
}

void print_time(const RunPlan& run) {
  const auto line = [](const char* what, std::optional<double> seconds, const char* keys) {
    fmt::print("  {:16}{:>12}{}\n", what, seconds ? time_text(*seconds) : "unknown",
               seconds ? "" : fmt::format("  (set {})", keys));
  };
  const bool matrices = run.options.optimizer.matrix.has_value();
  fmt::print("time at the machine's peak\n");
  line("model", run.forward_backward_s, "machine.peak_tflops");
  line("optimizer", run.optimizer_s,
       matrices ? "machine.peak_tflops, machine.memory_bandwidth" : "machine.memory_bandwidth");
  if (run.plan.ranks() > 1) line("network", run.network_s, "machine.network_bandwidth");
  line("checkpoint", run.checkpoint_s, "machine.disk_bandwidth");
  const auto moves = [&run](double RankMemory::*moved) {
    return std::any_of(run.memory.begin(), run.memory.end(), [moved](const auto& memory) { return memory.*moved > 0; });
  };
  if (moves(&RankMemory::nvme_moved)) line("NVMe", run.nvme_s, "machine.disk_bandwidth");
  if (run.link.refreshes + run.link.tiers > 0) line("host link", run.link_s, "machine.host_bandwidth");
  if (run.refresh_flops) line("refresh workers", run.refresh_s, "machine.peak_tflops, of a host");
  if (run.first_bases_flops > 0) line("first bases", run.first_bases_s, "machine.peak_tflops");  // once in a run
  if (const auto step = run.step_s(); step && run.options.run.steps > 0)
    fmt::print("  {:16}{:>12}  {} steps, {} tokens\n", "run",
               time_text(*step * static_cast<double>(run.options.run.steps)), run.options.run.steps,
               with_unit(run.tokens_per_step * static_cast<double>(run.options.run.steps), ""));
  if (run.plan.ranks() > 1) fmt::print("\nplanned in {}\n", time_text(run.planning_s));
}

void print_rows(const std::vector<ReadingRow>& rows) {
  for (const ReadingRow& row : rows) fmt::print("  {:28}{:>8.3f}{:>12.3f}\n", row.plan, row.flops, row.elements);
}

}  // namespace

void print_text(const RunPlan& run) {
  print_sizes(run);
  print_balance(run);
  print_pipeline(run);
  print_updates(run);
  print_refreshes(run);
  print_collectives(run);
  print_workers(run);
  print_coherence(run);
  print_memory(run);
  print_measured(run);
  print_time(run);
}

void print_text(const PaperReading& reading) {
  fmt::print("max / mean                    {:>8}{:>12}\n", "FLOPs", "elements");
  fmt::print("data-parallel ranks; lower bound {:.2f}\n", reading.dp_bound);
  print_rows(reading.dp);
  fmt::print("home ranks of data-parallel rank 0\n");
  print_rows(reading.homes);
  fmt::print("  micro-groups over the home ranks of other data-parallel ranks: FLOPs {:.2f} to {:.2f}\n",
             reading.homes_least, reading.homes_most);
  fmt::print("home ranks of all data-parallel ranks; lower bound {:.2f}\n", reading.all_homes_bound);
  print_rows(reading.all_homes);
}

}  // namespace sestina
