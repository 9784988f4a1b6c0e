#include "parallel/plan/plan_cost.hpp"

#include <cmath>

#include "core/optimizer/base/routing.hpp"

namespace sestina {

double update_flops(std::string_view kind, std::int64_t rows, std::int64_t cols) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols);
  const MatrixKind* row = find_matrix_kind(kind);
  return row && row->stated_flops ? row->stated_flops(r, c) : r * c;
}

double update_seconds(const MatrixOptions& options, std::int64_t rows, std::int64_t cols,
                      const MachineOptions& machine) {
  constexpr double giga = 1e9, tera = 1e12;
  constexpr double passes = 7, bytes = 4;  // reads and writes of weight, gradient and two state arrays, f32
  const MatrixKind* kind = find_matrix_kind(options.kind);
  const UpdateWork work = kind && kind->work ? kind->work(options, rows, cols) : UpdateWork{};
  const double flops = work.update + work.refresh / static_cast<double>(options.refresh_every);
  return flops / (*machine.peak_tflops * tera) +
         passes * bytes * static_cast<double>(rows * cols) / (*machine.memory_bandwidth * giga);
}

std::int64_t tensor_cost(const TensorSpec& spec, const OptimizerOptions& optimizer, ParallelOptions::Cost cost,
                         const MachineOptions& machine) {
  if (cost == ParallelOptions::Cost::elements) return spec.elements();
  constexpr double nano = 1e9;
  std::int64_t sum = 0;
  for (const MatrixPart& part : matrix_parts(spec, optimizer))
    sum += std::llround(cost == ParallelOptions::Cost::flops
                            ? update_flops(optimizer.kind, part.rows, part.cols)
                            : nano * update_seconds(*optimizer.matrix, part.rows, part.cols, machine));
  return sum;
}

ByShape<std::int64_t> tensor_costs(const OptimizerOptions& optimizer, ParallelOptions::Cost cost,
                                   const MachineOptions& machine) {
  return ByShape<std::int64_t>(
      [&optimizer, cost, &machine](const TensorSpec& spec) { return tensor_cost(spec, optimizer, cost, machine); });
}

ByShape<std::size_t> state_bytes(const OptimizerOptions& optimizer) {
  return ByShape<std::size_t>(
      [&optimizer](const TensorSpec& spec) { return optimizer_state_bytes({spec}, optimizer, sizeof(float)); });
}

void require_machine(ParallelOptions::Cost cost, const MachineOptions& machine) {
  if (cost == ParallelOptions::Cost::seconds && !(machine.peak_tflops && machine.memory_bandwidth))
    fail(ExitCode::bad_deck,
         "parallel.cost: \"seconds\" needs machine.peak_tflops and machine.memory_bandwidth, allowed without them "
         "\"flops\", \"elements\"");
}

}  // namespace sestina
