// `sestina bench optimizer`: whole update passes over the deck's model, or over a list of matrices, with random
// gradients: time with refreshes spread over their period, time of the refreshes, state, and speed of the products.
// With --machine it also times each shape of matrix by itself, for parallel.cost = "seconds" of `plan`.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "app/bench/bench.hpp"
#include "app/bench/machine_rates.hpp"
#include "app/command/verbs.hpp"
#include "app/start/kokkos_session.hpp"
#include "app/start/memory_check.hpp"
#include "app/start/run_deck.hpp"
#include "app/train/refresh_setup.hpp"
#include "core/benches.hpp"
#include "core/layout/arena.hpp"
#include "core/machine_speed.hpp"
#include "core/optimizer/optimizer.hpp"

namespace sestina {
namespace {

// Reads "1024x1024,768x2048" as matrices of these shapes.
std::vector<TensorSpec> listed_matrices(const std::string& shapes) {
  std::vector<TensorSpec> specs;
  for (std::size_t begin = 0; begin <= shapes.size();) {
    const std::size_t end = std::min(shapes.find(',', begin), shapes.size());
    const std::string word = shapes.substr(begin, end - begin);
    TensorSpec spec;
    int used = 0;
    if (std::sscanf(word.c_str(), "%ldx%ld%n", &spec.rows, &spec.cols, &used) != 2 ||
        used != static_cast<int>(word.size()) || std::min(spec.rows, spec.cols) < 1 ||
        std::max(spec.rows, spec.cols) > 1 << 20)
      fail(ExitCode::usage, "--shapes: got \"{}\", allowed: rows x columns such as 1024x1024,768x2048", word);
    spec.name = fmt::format("matrix.{}.weight", specs.size());
    specs.push_back(spec);
    begin = end + 1;
  }
  return specs;
}

void require_optimizer_memory(const std::vector<TensorSpec>& specs, const OptimizerOptions& options, bool bf16_run) {
  const ArenaLayout all = arena_layout(specs);
  const std::size_t tensors = all.elements * (2 * sizeof(float) + (bf16_run ? sizeof(bf16) : 0)),
                    state = optimizer_state_bytes(specs, options, sizeof(float));
  const MemoryShare have = available_memory();
  if (have.bytes == 0 || tensors + state <= have.bytes) return;
  fail(ExitCode::unavailable,
       "{} needs {:.2f} GB for weights and gradients and {:.2f} GB of state, {} has {:.2f} GB available", options.kind,
       static_cast<double>(tensors) * 1e-9, static_cast<double>(state) * 1e-9, have.name,
       static_cast<double>(have.bytes) * 1e-9);
}

// Matrices of one shape, which are updated together as a rank would do it: as many as the model has, or as threads.
struct ShapeGroup {
  MatrixPart part;
  std::vector<TensorSpec> specs;
};

std::vector<ShapeGroup> groups_by_shape(const std::vector<TensorSpec>& specs, const OptimizerOptions& optimizer,
                                        std::size_t threads) {
  std::map<std::pair<std::int64_t, std::int64_t>, ShapeGroup> groups;
  for (const TensorSpec& spec : specs) {
    if (!is_matrix_optimized(spec, optimizer) || spec.skew_block > 0) continue;
    for (const MatrixPart& part : matrix_parts(spec, optimizer)) {
      ShapeGroup& group = groups[{part.rows, part.cols}];
      group.part = part;
      TensorSpec alone{fmt::format("matrix.{}.weight", group.specs.size()), part.rows, part.cols};
      if (group.specs.size() < threads) group.specs.push_back(alone);
    }
  }
  std::vector<ShapeGroup> list;
  for (auto& [shape, group] : groups) list.push_back(std::move(group));
  return list;
}

// Sets refreshes inline and often enough to be timed: `plan` knows how often they come, and whether workers do them.
Options measured_options(const Options& options) {
  constexpr std::int64_t period = 2;
  Options measured = options;
  MatrixOptions& matrix = *measured.optimizer.matrix;
  matrix.refresh_every = std::min(matrix.refresh_every, period);
  matrix.refresh_staleness = 0;
  matrix.refresh_drift = 0;
  matrix.refresh_eager = false;
  matrix.tier = matrix.state_tier = measured.optimizer.state_tier = Tier::device;
  matrix.field_tiers.clear();
  measured.optimizer.refresh = {};
  measured.optimizer.group.clear();
  measured.optimizer.per_head = false;
  return measured;
}

OptimizerTime time_updates(const std::vector<TensorSpec>& specs, const Options& options,
                           const BenchArguments& arguments) {
  return bench_optimizer(specs, options, {arguments.warmup, arguments.steps}, [&](OptimizerControl& optimizer) {
    if (const auto tier = make_tier(options, ".", 0, memory_in(options.run.space))) {
      optimizer.page_to(tier);
      open_tier(*tier);
    }
  });
}

std::vector<MeasuredUpdate> measure_updates(const std::vector<TensorSpec>& specs, const Options& options,
                                            const BenchArguments& arguments) {
  constexpr double giga = 1e9;
  std::vector<MeasuredUpdate> updates;
  if (!options.optimizer.matrix) return updates;
  const Options measured = measured_options(options);
  const MatrixOptions& matrix = *measured.optimizer.matrix;
  const auto threads =
      static_cast<std::size_t>(memory_in(options.run.space) == MemorySpace::host ? threads_of(Host()) : 1);
  for (const ShapeGroup& group : groups_by_shape(specs, options.optimizer, threads)) {
    const OptimizerTime bench = time_updates(group.specs, measured, arguments);
    const auto count = static_cast<double>(group.specs.size());
    MeasuredUpdate update{.kind = matrix.kind, .bf16 = options.train.precision == TrainOptions::Precision::bf16};
    update.matmul_precision = matmul_precision(matrix);
    update.ns_precision = ns_precision(matrix);
    update.rows = group.part.rows;
    update.cols = group.part.cols;
    update.gflop = find_matrix_kind(matrix.kind)->work(matrix, update.rows, update.cols).update / giga;
    update.seconds = (bench.update_s - bench.refresh_s) / count;
    update.refresh_s = bench.refresh_s * static_cast<double>(matrix.refresh_every) / count;
    updates.push_back(update);
  }
  return updates;
}

}  // namespace

int run_bench_optimizer(const BenchOptimizerArguments& arguments) {
  Deck deck = layered_deck(arguments.deck);
  const Options options = Options::read(deck);
  require_one_rank(deck, options.parallel);
  deck.finish();
  const auto specs = arguments.shapes.empty() ? tensor_specs(options.model) : listed_matrices(arguments.shapes);
  const bool bf16_run = options.train.precision == TrainOptions::Precision::bf16;
  require_optimizer_memory(specs, options.optimizer, bf16_run);
  const KokkosSession kokkos(options.run.threads, arguments.kokkos, 1, options.optimizer.refresh_workers());
  const OptimizerTime bench = time_updates(specs, options, arguments);
  const MachinePeak peak = measure_machine_peak(options.run.space);
  if (!arguments.machine.empty()) {
    Runtime alone({}, options.run.start_timeout);
    const MachineRates rates = measure_rates(options, alone, peak, arguments.machine);
    write_machine(alone, arguments.machine, rates, options.train.precision, measure_updates(specs, options, arguments));
  }
  std::int64_t parameters = 0;
  for (const TensorSpec& spec : specs) parameters += spec.elements();
  const double tflops = bench.products_s > 0 ? bench.products_flops / bench.products_s * 1e-12 : 0;
  const bool newton_schulz =
      options.optimizer.matrix && find_matrix_kind(options.optimizer.kind)->newton_schulz != nullptr;
  if (arguments.json) {
    nlohmann::ordered_json json{{"kind", options.optimizer.kind},   {"precision", bf16_run ? "bf16" : "fp32"},
                                {"parameters", parameters},         {"tensors", specs.size()},
                                {"optimizer_s", bench.update_s},    {"refresh_s", bench.refresh_s},
                                {"state_bytes", bench.state_bytes}, {"lanes", bench.streams},
                                {"matmul_s", bench.products_s},     {"matmul_tflops", tflops},
                                {"gemm_bf16_tflops", nullptr},      {"gemm_fp32_tflops", peak.gemm_fp32_tflops}};
    if (peak.gemm_bf16_tflops) json["gemm_bf16_tflops"] = *peak.gemm_bf16_tflops;
    if (newton_schulz) json["newton_schulz_tflops"] = bench.products_flops / bench.update_s * 1e-12;
    fmt::print("{}\n", json.dump());
    return 0;
  }
  fmt::print("{}, {} parameters in {} tensors, {}, {} at a time\n", options.optimizer.kind, parameters, specs.size(),
             bf16_run ? "bf16" : "fp32", bench.streams);
  fmt::print("update             {:9.1f} ms\n", bench.update_s * 1e3);
  fmt::print("of it, refreshes   {:9.1f} ms\n", bench.refresh_s * 1e3);
  fmt::print("matrix products    {:9.1f} ms   {:.3f} TFLOP/s; measured peak {}{:.3f} fp32\n", bench.products_s * 1e3,
             tflops, peak.gemm_bf16_tflops ? fmt::format("{:.3f} bf16, ", *peak.gemm_bf16_tflops) : "",
             peak.gemm_fp32_tflops);
  fmt::print("state              {:9.1f} MB   {:.2f} bytes for each parameter\n",
             static_cast<double>(bench.state_bytes) * 1e-6,
             static_cast<double>(bench.state_bytes) / static_cast<double>(parameters));
  return 0;
}

}  // namespace sestina
