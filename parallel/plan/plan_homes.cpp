#include "parallel/plan/plan_homes.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace sestina {
namespace {

// Exchanges one home of the heaviest group against one of another while that makes the heaviest lighter.
void exchange(const std::vector<std::int64_t>& bytes, std::vector<std::vector<int>>& group,
              std::vector<std::int64_t>& load) {
  constexpr std::size_t most_work = 100'000'000;  // pairs looked at: with very many ranks there is little to gain
  const std::size_t rounds = std::min(group.size(), most_work / (group.size() * group[0].size() * group[0].size()));
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto from = static_cast<std::size_t>(std::max_element(load.begin(), load.end()) - load.begin());
    std::int64_t best = load[from], moved = 0;
    std::size_t best_to = from, best_give = 0, best_take = 0;
    for (std::size_t to = 0; to < group.size(); ++to)
      for (std::size_t give = 0; give < group[from].size(); ++give)
        for (std::size_t take = 0; take < group[to].size(); ++take) {
          const std::int64_t less = bytes[at(group[from][give])] - bytes[at(group[to][take])];
          const std::int64_t heavier = std::max(load[from] - less, load[to] + less);
          if (less <= 0 || heavier >= best) continue;
          best = heavier;
          moved = less;
          best_to = to;
          best_give = give;
          best_take = take;
        }
    if (best_to == from) return;
    std::swap(group[from][best_give], group[best_to][best_take]);
    load[from] -= moved;
    load[best_to] += moved;
  }
}

// Bytes after which a group is full enough for another one to begin: with few groups the exchanges of the first and of
// the last are most of all that there are, with very small ones messages cost more than they hide.
std::int64_t enough_bytes(const std::vector<HomedMatrix>& matrices, int tp) {
  constexpr std::int64_t usual_groups = 4, least_at_home = std::int64_t{4} << 20;
  std::int64_t all = 0;
  for (const HomedMatrix& matrix : matrices) all += matrix.bytes;
  return std::max(all / usual_groups, least_at_home * tp);
}

}  // namespace

std::vector<int> group_homes(const std::vector<std::int64_t>& bytes, int dp, int tp) {
  std::vector<int> order(bytes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return bytes[at(a)] > bytes[at(b)]; });
  std::vector<std::vector<int>> group(at(dp));
  std::vector<std::int64_t> load(at(dp), 0);
  using Slot = std::pair<std::int64_t, int>;  // load of a group with room, and its number
  std::priority_queue<Slot, std::vector<Slot>, std::greater<>> least;
  for (int g = 0; g < dp; ++g) least.emplace(0, g);
  for (const int home : order) {
    const int g = least.top().second;
    least.pop();
    group[at(g)].push_back(home);
    load[at(g)] += bytes[at(home)];
    if (group[at(g)].size() < at(tp)) least.emplace(load[at(g)], g);
  }
  exchange(bytes, group, load);
  std::vector<int> rank(bytes.size());
  for (int g = 0; g < dp; ++g)
    for (int t = 0; t < tp; ++t) rank[at(group[at(g)][at(t)])] = g * tp + t;
  return rank;
}

std::vector<MicroGroup> micro_groups(std::vector<HomedMatrix> matrices, int tp, std::int64_t most_bytes) {
  std::stable_sort(matrices.begin(), matrices.end(),
                   [](const HomedMatrix& a, const HomedMatrix& b) { return a.cost > b.cost; });
  struct Turn {
    std::int64_t start;
    const HomedMatrix* matrix;
  };
  std::vector<Turn> turns;
  std::vector<std::int64_t> busy(at(tp), 0);
  for (const HomedMatrix& matrix : matrices) {
    turns.push_back({busy[at(matrix.home)], &matrix});
    busy[at(matrix.home)] += matrix.cost;
    most_bytes = std::max(most_bytes, matrix.bytes);
  }
  std::stable_sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) { return a.start < b.start; });
  std::vector<MicroGroup> groups;
  std::vector<std::int64_t> held(at(tp), 0);
  const std::int64_t enough = enough_bytes(matrices, tp);
  for (const Turn& turn : turns) {
    const HomedMatrix& matrix = *turn.matrix;
    const std::int64_t all = std::accumulate(held.begin(), held.end(), std::int64_t{0});
    const bool hides = turn.start > 0 && all >= enough;  // what a home takes first is the work that hides others
    if (groups.empty() || hides || held[at(matrix.home)] + matrix.bytes > most_bytes) {
      groups.emplace_back();
      std::fill(held.begin(), held.end(), 0);
    }
    held[at(matrix.home)] += matrix.bytes;
    groups.back().specs.push_back(matrix.spec);
    groups.back().bytes = std::max(groups.back().bytes, held[at(matrix.home)]);
  }
  return groups;
}

}  // namespace sestina
