#include "core/machine_speed.hpp"

#include <algorithm>

#include "core/dispatch.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

double median(std::vector<double> values) {
  SESTINA_REQUIRE(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

MemorySpace memory_in(RunOptions::Space space) {
  return space == RunOptions::Space::device && !is_host<Device> ? MemorySpace::device : MemorySpace::host;
}

MachinePeak measure_machine_peak(RunOptions::Space space) {
  return dispatch(space, TrainOptions::Precision::fp32,
                  [](const auto& exec, auto) { return measure_machine_peak<std::decay_t<decltype(exec)>>(exec); });
}

}  // namespace sestina
