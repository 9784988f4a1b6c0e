// Which products of a group are computed side by side, each on one thread, and by which. Private to the matrix
// products.
#pragma once
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace sestina::host {

// The largest products first: `together` of them are each computed by all threads, one after the other; of those that
// follow in `order`, number i is thread[i]'s.
struct GroupShares {
  std::vector<std::size_t> order, thread;
  std::size_t together = 0;
  std::vector<double> loads;  // of threads
};

// Gives the products from `begin` on, largest first, each to the thread that has least to do, and returns whether all
// threads end at nearly the same time.
inline bool share_products(const std::vector<double>& work, std::size_t begin, GroupShares& to) {
  constexpr double most = 1.25;  // what the last thread may take of the time of all threads with equal loads
  std::fill(to.loads.begin(), to.loads.end(), 0.0);
  double sum = 0;
  for (std::size_t i = begin; i < to.order.size(); ++i) {
    const auto least = std::min_element(to.loads.begin(), to.loads.end());
    to.thread[i] = static_cast<std::size_t>(least - to.loads.begin());
    *least += work[to.order[i]];
    sum += work[to.order[i]];
  }
  const double last = *std::max_element(to.loads.begin(), to.loads.end());
  return last * static_cast<double>(to.loads.size()) <= most * sum;
}

// Shares products of so much work each out among threads. Products that leave the others no equal loads are computed
// by all threads, the largest first.
inline void share_group(const std::vector<double>& work, std::size_t threads, GroupShares& to) {
  to.order.resize(work.size());
  to.thread.resize(work.size());
  to.loads.resize(threads);
  std::iota(to.order.begin(), to.order.end(), std::size_t{0});
  std::sort(to.order.begin(), to.order.end(),
            [&](std::size_t a, std::size_t b) { return work[a] > work[b] || (work[a] == work[b] && a < b); });
  to.together = 0;
  while (to.together < work.size() && !share_products(work, to.together, to)) ++to.together;
}

}  // namespace sestina::host
