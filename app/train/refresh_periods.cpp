#include "app/train/refresh_periods.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "app/train/evaluation.hpp"
#include "app/train/step_report.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/refresh/refresh_rate.hpp"

namespace sestina {
namespace {

// The one whose refresh takes most.
MatrixPart largest_matrix(const Options& options) {
  MatrixPart largest;
  double most = -1;
  for (const TensorSpec& spec : tensor_specs(options.model)) {
    if (!is_matrix_optimized(spec, options.optimizer)) continue;
    for (const MatrixPart& part : matrix_parts(spec, options.optimizer)) {
      const double work = refresh_flops(*options.optimizer.matrix, part.rows, part.cols);
      if (std::exchange(most, std::max(most, work)) < work) largest = part;
    }
  }
  return largest;
}

}  // namespace

RefreshSpeed agreed_speed(double step_s, const Options& options, Communicator& world) {
  const MatrixPart matrix = largest_matrix(options);
  double numbers[] = {measure_refresh_rate(*options.optimizer.matrix, static_cast<std::size_t>(matrix.rows),
                                           static_cast<std::size_t>(matrix.cols)),
                      step_s};
  world.all_reduce(numbers, std::size(numbers), Reduction::min);
  return {numbers[1], numbers[0]};
}

template <class Exec, class T>
RefreshSpeed measure_speed(Executor<Exec, T>& executor, const SampleSet& training, const Options& options,
                           Communicator& world) {
  double step_s = 0;
  const int micros = static_cast<int>(options.train.global_batch / executor.setting().micro_batch);
  const double tokens = static_cast<double>(options.train.global_batch) * options.data.sequence_length;
  for (int round = 0; round < 2; ++round) {  // the first one allocates
    const double start = now_seconds();
    const auto seen = evaluate_loss(executor, training, micros, [] { return false; });
    step_s = 3 * (now_seconds() - start) * tokens / static_cast<double>(seen->tokens);
  }
  return agreed_speed(step_s, options, world);
}

#define SESTINA_MEASURE_SPEED(Exec, T) \
  template RefreshSpeed measure_speed<Exec, T>(Executor<Exec, T>&, const SampleSet&, const Options&, Communicator&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_MEASURE_SPEED)

}  // namespace sestina
