#include "app/train/refresh_periods.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "app/train/evaluation.hpp"
#include "app/train/step_report.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/refresh/refresh_rate.hpp"

namespace sestina {
namespace {

constexpr double measuring_s = 10;  // of all shapes; what small ones leave is for those behind them

// One of each shape, those whose refresh takes least first.
std::vector<RefreshRate> shapes_of(const Options& options) {
  std::map<double, std::vector<RefreshRate>> by_work;
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  for (const TensorSpec& spec : tensor_specs(options.model)) {
    if (!is_matrix_optimized(spec, options.optimizer)) continue;
    for (const MatrixPart& part : matrix_parts(spec, options.optimizer))
      if (seen.insert({part.rows, part.cols}).second)
        by_work[refresh_flops(*options.optimizer.matrix, part.rows, part.cols)].push_back({part.rows, part.cols});
  }
  std::vector<RefreshRate> shapes;
  for (const auto& [work, of_it] : by_work) shapes.insert(shapes.end(), of_it.begin(), of_it.end());
  return shapes;
}

}  // namespace

RefreshSpeed agreed_speed(double step_s, const Options& options, Communicator& world) {
  RefreshSpeed speed{step_s, std::numeric_limits<double>::infinity(), shapes_of(options)};
  std::vector<double> numbers = {step_s};
  const double end = now_seconds() + measuring_s;
  for (std::size_t i = 0; i < speed.rates.size(); ++i) {
    const double most = (end - now_seconds()) / static_cast<double>(speed.rates.size() - i);
    const RefreshRate rate =
        measure_refresh_rate(*options.optimizer.matrix, speed.rates[i].rows, speed.rates[i].cols, most);
    for (const double number :
         {rate.flops, static_cast<double>(rate.measured_rows), static_cast<double>(rate.measured_cols)})
      numbers.push_back(number);
  }
  world.all_reduce(numbers.data(), numbers.size(), Reduction::min);
  speed.step_s = numbers[0];
  for (std::size_t i = 0; i < speed.rates.size(); ++i) {
    RefreshRate& rate = speed.rates[i];
    const double* mine = &numbers[1 + 3 * i];
    rate.flops = mine[0];
    rate.measured_rows = static_cast<std::int64_t>(mine[1]);
    rate.measured_cols = static_cast<std::int64_t>(mine[2]);
    speed.flops = std::min(speed.flops, rate.flops);
  }
  return speed;
}

RefreshSpeed measure_speed(Executor& executor, const SampleSet& training, const Options& options, Communicator& world) {
  double step_s = 0;
  const int micros = static_cast<int>(options.train.global_batch / executor.options().micro_batch);
  const double tokens = static_cast<double>(options.train.global_batch) * options.data.sequence_length;
  for (int round = 0; round < 2; ++round) {  // the first one allocates
    const double start = now_seconds();
    const auto seen = evaluate_loss(executor, training, micros, [] { return false; });
    step_s = 3 * (now_seconds() - start) * tokens / static_cast<double>(seen->tokens);
  }
  return agreed_speed(step_s, options, world);
}

void use_periods(Executor& executor, const RefreshPeriods& periods) {
  for (PipelineStage* stage : executor.runs()) stage->optimizer_control().set_refresh_periods(periods.of);
}

}  // namespace sestina
