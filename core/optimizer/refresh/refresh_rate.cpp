#include "core/optimizer/refresh/refresh_rate.hpp"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/optimizer/base/matrix_optimizer.hpp"

namespace sestina {
namespace {

constexpr std::size_t longest_side = 256;
constexpr int first_updates = 2, measured_updates = 5;

// Inline, and due at every update.
MatrixOptions always_due(MatrixOptions options) {
  options.refresh_every = 1;
  options.refresh_staleness = 0;
  options.tier = Tier::device;
  options.field_tiers.clear();
  const MatrixKind& kind = *find_matrix_kind(options.kind);
  if (kind.refresh_always) kind.refresh_always(options);
  return options;
}

}  // namespace

double measure_refresh_rate(const MatrixOptions& asked, std::size_t rows, std::size_t cols) {
  const MatrixOptions options = always_due(asked);
  const std::size_t m = std::min(rows, longest_side), n = std::min(cols, longest_side);
  const double flops = refresh_flops(options, static_cast<std::int64_t>(m), static_cast<std::int64_t>(n));
  if (flops == 0) return std::numeric_limits<double>::infinity();
  const Serial exec{Kokkos::NewInstance{}};
  Lane<Serial> lane{
      .exec = exec, .gemm = Gemm<Serial>(exec), .workspace = Workspace<Serial>(scratch_bytes<Serial>(options, m, n))};
  const auto optimizer = make_matrix_optimizer<Serial>(exec, options, {"/optimizer/measured", m, n, 0});
  std::vector<float> gradient(m * n), master(m * n, 0);
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<double> seconds;
  for (int update = 1; update <= first_updates + measured_updates; ++update) {
    for (float& g : gradient) g = value(random);
    optimizer->step(lane, {.t = update},
                    {"measured",
                     Matrix<const float, Serial>(gradient.data(), m, n),
                     Matrix<float, Serial>(master.data(), m, n),
                     {}});
    const double spent = std::exchange(lane.refreshes.waits, 0.0);
    if (update > first_updates) seconds.push_back(spent);
  }
  std::nth_element(seconds.begin(), seconds.begin() + measured_updates / 2, seconds.end());
  const double median = seconds[measured_updates / 2];
  return median > 0 ? flops / median : std::numeric_limits<double>::infinity();
}

}  // namespace sestina
