#include "app/verbs/run_plan.hpp"

#include <algorithm>
#include <functional>

#include "app/start/memory_check.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/optimizer/base/routing.hpp"
#include "parallel/exchange/traffic.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/plan/plan_cost.hpp"

namespace sestina {
namespace {

bool is_bf16(const Options& options) { return options.train.precision == TrainOptions::Precision::bf16; }

// AdamW reads weight, gradient and both moments and writes all but the gradient; bf16 runs write the compute copy too.
double adamw_traffic(const RankMemory& memory, const Options& options) {
  constexpr double passes = 3, f32 = 4, copy = 2;
  return static_cast<double>(memory.scalar_elements) * (passes * f32 + (is_bf16(options) ? copy : 0)) +
         2 * static_cast<double>(memory.scalar_state);
}

// Returns the seconds of the slowest rank, with its rows of the scalar tensors and its matrices.
std::optional<double> optimizer_seconds(const RunPlan& run) {
  const MachineOptions& machine = run.options.machine;
  if (!machine.memory_bandwidth) return std::nullopt;
  const bool matrices = run.options.optimizer.matrix.has_value();
  if (matrices && !machine.peak_tflops) return std::nullopt;
  double slowest = 0;
  std::size_t first = 0;
  for (const StagePlan& stage : run.plan.stages) {
    const std::size_t ranks = stage.rank_cost.size();
    std::vector<std::int64_t> nanoseconds(ranks, 0);
    if (matrices) nanoseconds = rank_loads(stage, run.plan.input, ParallelOptions::Cost::seconds).cost;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      slowest = std::max(slowest,
                         1e-9 * static_cast<double>(nanoseconds[rank]) +
                             adamw_traffic(run.memory[first + rank], run.options) / (*machine.memory_bandwidth * 1e9));
    first += ranks;
  }
  return slowest;
}

// Returns the bytes of the rank that needs most.
std::size_t largest(const RunPlan& run, const std::function<std::size_t(const RankMemory&)>& bytes) {
  std::size_t most = 0;
  for (const RankMemory& memory : run.memory) most = std::max(most, bytes(memory));
  return most;
}
std::size_t largest_save(const RunPlan& run) {
  return largest(run, [](const RankMemory& memory) { return memory.saved; });
}

std::size_t largest_outside_device(const RunPlan& run) {
  return largest(run, [](const RankMemory& memory) { return memory.on_host(); });
}

double most_moved(const RunPlan& run, double RankMemory::*moved) {
  double most = 0;
  for (const RankMemory& memory : run.memory) most = std::max(most, memory.*moved);
  return most;
}

// Returns the FLOPs of the rank that has most to do before its first update with bases.
double largest_first_bases(const RunPlan& run) {
  std::vector<double> flops(at(run.plan.ranks()), 0);  // by pipeline rank, and rank in its stages
  for (std::size_t stage = 0; stage < run.plan.stages.size(); ++stage) {
    const std::vector<double> own = first_bases_flops(run.plan.stages[stage], run.plan.input);
    const std::size_t first = at(run.plan.pipe.rank_of(static_cast<int>(stage))) * own.size();
    for (std::size_t rank = 0; rank < own.size(); ++rank) flops.at(first + rank) += own[rank];
  }
  return *std::max_element(flops.begin(), flops.end());
}

void estimate(RunPlan& run) {
  const MachineOptions& machine = run.options.machine;
  const double ranks = run.plan.ranks();
  if (machine.peak_tflops) run.forward_backward_s = run.flops_per_step / (ranks * *machine.peak_tflops * 1e12);
  run.optimizer_s = optimizer_seconds(run);
  run.first_bases_flops = largest_first_bases(run);
  if (machine.peak_tflops) run.first_bases_s = run.first_bases_flops / (*machine.peak_tflops * 1e12);
  if (machine.network_bandwidth) {
    double bytes = 0;
    for (const Collective& collective : run.sent) bytes += sent_bytes(collective, run.plan);
    bytes += run.plan.coherence.bytes_per_update() / run.plan.ranks();
    run.network_s = bytes / (*machine.network_bandwidth * 1e9);
  }
  run.link = {most_moved(run, &RankMemory::refresh_moved), most_moved(run, &RankMemory::link_moved)};
  if (machine.host_bandwidth) run.link_s = (run.link.refreshes + run.link.tiers) / (*machine.host_bandwidth * 1e9);
  if (machine.disk_bandwidth) {
    const double bandwidth = *machine.disk_bandwidth * 1e9;
    run.nvme_s = most_moved(run, &RankMemory::nvme_moved) / bandwidth;
    run.checkpoint_s = static_cast<double>(largest_save(run)) / bandwidth;
  }
}

// The speed of one worker at refreshes over that of a core at products, about as measured for QR steps of 256 x 256
// (LAPACK, Zen 5).
constexpr double refresh_share = 0.3;

double worker_speed(const Options& o) {  // FLOP/s
  if (const auto declared = declared_flops(o.machine)) return *declared;
  return refresh_share * *o.machine.peak_tflops * 1e12 / std::max(1, planned_threads(o));
}

std::optional<RefreshPeriods> planned_periods(const RunPlan& run) {
  const Options& o = run.options;
  if (!o.optimizer.refresh.automatic || !run.forward_backward_s) return std::nullopt;
  return fit_periods(run.plan, {*run.forward_backward_s, worker_speed(o)});
}

std::optional<RefreshLag> planned_lag(const RunPlan& run) {
  const Options& o = run.options;
  if (!o.optimizer.refresh.fits_staleness || !run.forward_backward_s) return std::nullopt;
  return fit_staleness(run.plan, {*run.forward_backward_s, worker_speed(o)});
}

// [machine] of a device says nothing of the cores next to it, unless it has the speed of workers.
bool knows_workers(const Options& o) {
  const bool on_device = planned_threads(o) == 0 || o.machine.memory || o.optimizer.refresh.chooses_executor;
  return o.machine.worker_gflops || (o.machine.peak_tflops && !on_device);
}

std::optional<RefreshExecutors> planned_executors(const RunPlan& run) {
  const Options& o = run.options;
  if (!o.optimizer.refresh.chooses_executor || !run.forward_backward_s || !knows_workers(o)) return std::nullopt;
  return choose_executors(run.plan, {*run.forward_backward_s, worker_speed(o)},
                          run.refresh_periods.value_or(RefreshPeriods{}));
}

// Estimates asynchronous refreshes of the rank whose workers have most of them, as if these had all.
void estimate_workers(RunPlan& run) {
  const Options& o = run.options;
  if (o.optimizer.refresh_workers() == 0) return;
  const std::vector<std::int64_t> periods = run.refresh_periods ? run.refresh_periods->of : std::vector<std::int64_t>{};
  double most = 0, all = 0, ranks = 0;
  for (const StagePlan& stage : run.plan.stages)
    for (const double flops : worker_flops(stage, run.plan.input, periods)) {
      most = std::max(most, flops);
      all += flops;
      ++ranks;
    }
  run.refresh_flops = most;
  if (all > 0) run.refresh_ratio = most * ranks / all;
  if (knows_workers(o)) run.refresh_s = *run.refresh_flops / (o.optimizer.refresh_workers() * worker_speed(o));
}

// Compares needs with memory. A device holds all of its rank but the copy that a checkpoint is written from, which lies
// in the node's memory.
std::vector<RunPlan::Memory> compare_memory(const RunPlan& run) {
  constexpr double giga = 1e9;
  const MachineOptions& machine = run.options.machine;
  const auto bytes = [](double gigabytes) { return static_cast<std::size_t>(gigabytes * giga); };
  const std::size_t on_device = largest(run, [](const RankMemory& memory) { return memory.size.total(); });
  std::vector<RunPlan::Memory> compared;
  if (machine.memory) compared.push_back({"a device", on_device, bytes(*machine.memory)});
  if (machine.host_memory) {
    const auto ranks = static_cast<std::size_t>(std::max(1, run.options.parallel.node_size));
    compared.push_back({"a node", ranks * (machine.memory ? largest_outside_device(run) : run.needed_bytes),
                        bytes(*machine.host_memory)});
  }
  if (compared.empty() && run.plan.ranks() == 1)
    if (const std::uint64_t available = available_memory_bytes(); available > 0)
      compared.push_back({"this machine", run.needed_bytes, available});
  return compared;
}

}  // namespace

RunPlan make_run_plan(const Options& options) {
  RunPlan run;
  run.options = options;
  run.plan = make_plan(options);
  run.sent = collectives(run.plan);
  run.memory = rank_memory(run.plan, planned_threads(options), options.checkpoint.async);
  run.needed_bytes = largest(run, [](const RankMemory& memory) { return memory.total(); });
  run.compared = compare_memory(run);
  run.flops_per_token = flops_per_token(options);
  run.tokens_per_step = static_cast<double>(options.train.global_batch) * options.data.sequence_length;
  run.flops_per_step = run.flops_per_token * run.tokens_per_step;
  estimate(run);
  if (options.optimizer.matrix) run.measured = measured_shapes(run.plan.stages, run.plan.input);
  run.refresh_periods = planned_periods(run);
  run.refresh_lag = planned_lag(run);
  run.refresh_executors = planned_executors(run);
  estimate_workers(run);
  return run;
}

std::vector<MemoryKind> kinds_of(const RankMemory& memory, bool shared_weights) {
  const ModelSize& size = memory.size;
  return {{"weights", shared_weights ? "weights" : "compute weights", size.weights},
          {"master_weights", "master weights", size.master},
          {"gradients", "gradients", size.gradients},
          {"optimizer", "optimizer state", size.optimizer},
          {"activations", "activations", size.activations},
          {"workspace", "workspace", size.workspace},
          {"stash", "pipeline stash", size.stash},
          {"exchanges", "exchanges", size.exchanges},
          {"host_tier", "host tier", memory.host_tier},
          {"refresh_workers", "refresh workers", memory.workers},
          {"checkpoint_copy", "checkpoint copy", memory.checkpoint}};
}

}  // namespace sestina
