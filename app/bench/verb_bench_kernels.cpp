// `sestina bench kernels`: each kernel of the deck's model at its own sizes, compared with the bound that it could
// reach: the measured peak of matrix products for kernels that multiply, memory bandwidth for those that move data.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/bench/bench.hpp"
#include "app/bench/machine_rates.hpp"
#include "app/command/verbs.hpp"
#include "app/start/kokkos_session.hpp"
#include "core/benches.hpp"
#include "core/machine_speed.hpp"

namespace sestina {

int run_bench_kernels(const BenchArguments& arguments) {
  const Options options = bench_options(arguments);
  const KokkosSession kokkos(options.run.threads, arguments.kokkos);
  const MachinePeak peak = measure_machine_peak(options.run.space);
  if (!arguments.machine.empty()) {
    Runtime alone({}, options.run.start_timeout);
    write_machine(alone, arguments.machine, measure_rates(options, alone, peak, arguments.machine),
                  options.train.precision);
  }
  const std::vector<KernelTime> rows = bench_kernels(options, {arguments.warmup, arguments.steps});
  const double tflops = peak.gemm_tflops(options.train.precision == TrainOptions::Precision::bf16);
  nlohmann::ordered_json json{{"gemm_peak_tflops", tflops},
                              {"memory_bandwidth_gbs", peak.memory_gbs},
                              {"kernels", nlohmann::ordered_json::array()}};
  if (!arguments.json)
    fmt::print("bounds: products {:.3f} TFLOP/s, memory {:.1f} GB/s\n{:<30} {:>10} {:>18} {:>10}\n", tflops,
               peak.memory_gbs, "kernel", "ms", "rate", "of bound");
  for (const KernelTime& row : rows) {
    const bool products = row.flops > 0;
    const double rate = (products ? row.flops * 1e-12 : row.bytes * 1e-9) / row.seconds,
                 share = rate / (products ? tflops : peak.memory_gbs);
    json["kernels"].push_back(
        {{"name", row.name}, {"seconds", row.seconds}, {products ? "tflops" : "gbs", rate}, {"of_bound", share}});
    if (!arguments.json)
      fmt::print("{:<30} {:>10.3f} {:>11.3f} {:<6} {:>8.0f} %\n", row.name, row.seconds * 1e3, rate,
                 products ? "TFLOP/s" : "GB/s", 100 * share);
  }
  if (arguments.json) fmt::print("{}\n", json.dump());
  return 0;
}

}  // namespace sestina
