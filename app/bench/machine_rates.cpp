#include "app/bench/machine_rates.hpp"

#include <Kokkos_Core.hpp>
#include <filesystem>
#include <vector>

#include "app/train/step_report.hpp"
#include "io/store/output_file.hpp"
#include "kernels/base/host_name.hpp"
#include "kernels/base/version.hpp"
#include "parallel/stage/exchange_rate.hpp"

namespace sestina {
namespace {

constexpr double giga = 1e9;

double write_gbs(Runtime& runtime, const std::string& file) {
  constexpr std::size_t block = std::size_t{8} << 20, most = std::size_t{256} << 20;
  constexpr double enough = 1;  // seconds
  std::vector<std::uint32_t> data(block / sizeof(std::uint32_t));
  std::uint32_t state = 1;
  for (std::uint32_t& word : data) word = state = state * 1664525u + 1013904223u;  // no file system packs it
  const std::string name = fmt::format("{}.rate-{}", file, runtime.rank());
  double rate = 0;
  runtime.world().barrier();
  runtime.together([&] {
    OutputFile out(name);
    const double start = now_seconds();
    do out.write(data.data(), block);
    while (out.written() < most && now_seconds() < start + enough);
    out.commit();
    rate = static_cast<double>(out.written()) / giga / (now_seconds() - start);
    std::filesystem::remove(name);
  });
  return rate;
}

}  // namespace

MachineRates measure_rates(const Options& options, Runtime& runtime, const MachinePeak& mine, const std::string& file) {
  const bool several = runtime.size() > 1;
  double rates[] = {mine.gemm_tflops(options.train.precision == TrainOptions::Precision::bf16), mine.memory_gbs,
                    write_gbs(runtime, file), 0};
  if (several) rates[3] = exchange_gbs(options.run.space, runtime.world());
  runtime.world().all_reduce(rates, std::size(rates), Reduction::min);
  return {rates[0], rates[1], rates[2], several ? std::optional(rates[3]) : std::nullopt};
}

std::string machine_table(const MachineRates& rates, const std::string& how,
                          const std::vector<MeasuredUpdate>& updates) {
  std::string text = fmt::format("# {}\n[machine]\n", how);
  const auto add = [&](const char* key, std::optional<double> value, const char* what) {
    if (value) text += fmt::format("{} = {:.4g}  # {}\n", key, *value, what);
  };
  add("peak_tflops", rates.peak_tflops, "TFLOP/s of matrix products, of a rank");
  add("memory_bandwidth", rates.memory_bandwidth, "GB/s, of a rank");
  add("disk_bandwidth", rates.disk_bandwidth, "GB/s that a rank writes next to this file");
  add("network_bandwidth", rates.network_bandwidth, "GB/s that a rank sends while it receives as much");
  if (!updates.empty()) text += fmt::format("host = \"{}\"  # of the updates\n", host_name());
  for (const MeasuredUpdate& update : updates) {
    text += fmt::format("[[machine.update]]\nkind = \"{}\"\nprecision = \"{}\"\nrows = {}\ncols = {}\n", update.kind,
                        update.bf16 ? "bf16" : "fp32", update.rows, update.cols);
    text += fmt::format("gflop = {:.9g}\nseconds = {:.4g}\nrefresh_s = {:.4g}\n", update.gflop, update.seconds,
                        update.refresh_s);
    if (update.matmul_precision != "fp32") text += fmt::format("matmul_precision = \"{}\"\n", update.matmul_precision);
    if (update.ns_precision != "auto") text += fmt::format("ns_precision = \"{}\"\n", update.ns_precision);
  }
  return text;
}

void write_machine(Runtime& runtime, const std::string& file, const MachineRates& rates,
                   TrainOptions::Precision precision, const std::vector<MeasuredUpdate>& updates) {
  runtime.together([&] {
    if (!runtime.is_first()) return;
    const bool bf16_run = precision == TrainOptions::Precision::bf16;
    const auto source =
        fmt::format("Measured by sestina {} on {}, {}; ranks at a time: {}, threads of each: {}", version().text,
                    host_name(), bf16_run ? "bf16" : "fp32", runtime.size(), Kokkos::num_threads());
    write_output_file(file, machine_table(rates, source, updates));
  });
}

}  // namespace sestina
