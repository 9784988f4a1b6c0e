#include "core/optimizer/refresh/refresh_rate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "kernels/base/seconds_spent.hpp"

namespace sestina {
namespace {

constexpr std::int64_t first_side = 256;
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

// Seconds of a refresh.
double time_refresh(const MatrixOptions& options, std::size_t m, std::size_t n) {
  const Serial exec{Kokkos::NewInstance{}};
  const std::size_t scratch =
      bytes_taken<Serial>([&](Workspace<Serial>& counter) { declare_update<Serial>(counter, options, m, n); });
  Stream<Serial> stream{.exec = exec, .gemm = Gemm<Serial>(exec), .workspace = Workspace<Serial>(scratch)};
  const auto optimizer = make_matrix_optimizer<Serial>(exec, options, {"/optimizer/measured", m, n, 0});
  std::vector<float> gradient(m * n), master(m * n, 0);
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<double> seconds;
  for (int update = 1; update <= first_updates + measured_updates; ++update) {
    for (float& g : gradient) g = value(random);
    optimizer->step(stream, {.t = update},
                    {"measured",
                     Matrix<const float, Serial>(gradient.data(), m, n),
                     Matrix<float, Serial>(master.data(), m, n),
                     {}});
    const double spent = std::exchange(stream.refresh.seconds.waits, 0.0);
    if (update > first_updates) seconds.push_back(spent);
  }
  std::nth_element(seconds.begin(), seconds.begin() + measured_updates / 2, seconds.end());
  return seconds[measured_updates / 2];
}

}  // namespace

RefreshRate measure_refresh_rate(const MatrixOptions& asked, std::int64_t rows, std::int64_t cols,
                                 double most_seconds) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  const MatrixOptions options = always_due(asked);
  const std::int64_t longest = std::max(rows, cols);
  RefreshRate rate{rows, cols, 0, 0, infinite};
  double spent = 0, last = 0, last_flops = 0, falls_to = 1;  // last: seconds that the size before took here
  for (std::int64_t side = std::min(first_side, longest), done = 0; done < longest;) {
    const std::int64_t m = std::min(rows, side), n = std::min(cols, side);
    const double flops = refresh_flops(options, m, n);
    if (flops == 0) break;
    if (done > 0 && spent + last * flops / last_flops > most_seconds) {
      rate.flops *= std::pow(falls_to, std::log2(static_cast<double>(longest) / static_cast<double>(done)));
      break;
    }
    double seconds = 0;
    last = 0;
    {
      const SecondsSpent here(last);
      seconds = time_refresh(options, static_cast<std::size_t>(m), static_cast<std::size_t>(n));
    }
    const double measured = seconds > 0 ? flops / seconds : infinite;
    falls_to = measured < rate.flops && done > 0 ? measured / rate.flops : 1;
    rate = {rows, cols, m, n, measured};
    spent += last;
    last_flops = flops;
    done = std::exchange(side, std::min(2 * side, longest));
  }
  return rate;
}

}  // namespace sestina
