#include "core/optimizer/stream_share.hpp"

#include <algorithm>
#include <numeric>

namespace sestina {

double stream_cost(std::size_t rows, std::size_t cols) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(cols);
  return m * n * std::min(m, n);
}

std::vector<int> balance(const std::vector<double>& cost, int streams) {
  std::vector<std::size_t> order(cost.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return cost[a] > cost[b]; });
  std::vector<double> load(static_cast<std::size_t>(streams));
  std::vector<int> stream(cost.size());
  for (const std::size_t item : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += cost[item];
    stream[item] = static_cast<int>(least - load.begin());
  }
  return stream;
}

int stream_count(const std::vector<double>& cost, int threads) {
  constexpr double allowed_imbalance = 1.15;  // beyond it, all threads on each matrix are the faster way
  const std::vector<int> stream = balance(cost, threads);
  std::vector<double> load(static_cast<std::size_t>(threads));
  for (std::size_t i = 0; i < cost.size(); ++i) load[static_cast<std::size_t>(stream[i])] += cost[i];
  const double mean = std::accumulate(load.begin(), load.end(), 0.0) / threads;
  return *std::max_element(load.begin(), load.end()) <= allowed_imbalance * mean ? threads : 1;
}

PagedAtWork paged_at_work(std::size_t update, std::size_t refresh, int streams, int workers) {
  const auto jobs = 2 * static_cast<std::size_t>(std::max(1, workers));
  return {3 * static_cast<std::size_t>(streams) * update, refresh == 0 ? 0 : jobs * (update + refresh)};
}

PagedAtWork paged_on_device(std::size_t update, std::size_t refresh) { return {3 * (update + refresh), 0}; }

}  // namespace sestina
