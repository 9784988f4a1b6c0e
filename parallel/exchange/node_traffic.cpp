// The bytes that one step sends from node to node.
#include "parallel/exchange/traffic.hpp"

#include <algorithm>
#include <vector>

#include "parallel/comm/nodes.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/plan/expert_layout.hpp"

namespace sestina {
namespace {

// Returns how often a byte that one rank collects from all, or sends to all, goes to another node, in the mean over the
// ranks.
double crossings(const NodeLevels& levels, bool two_levels) {
  const auto nodes = static_cast<double>(levels.nodes.size());
  if (two_levels && continues_the_tree(levels)) return nodes - 1;
  return static_cast<double>(pairs_between_nodes(levels)) / static_cast<double>(levels.node_of.size());
}

// Returns the bytes between nodes of a sum (twice) or a gather (once) along a ring of `members` ranks: a part of the
// buffer on each link between two nodes.
double ring(const Collective& collective, double nodes, double members) {
  const double turns = collective.operation == "all_reduce" ? 2 : 1;
  return nodes < 2 ? 0 : turns * nodes * (members - 1) / members * static_cast<double>(collective.bytes);
}

bool is_bulk(const Collective& collective) { return collective.what == "gradients" || collective.what == "weights"; }

double of_data_parallel(const Collective& collective, const ParallelOptions& parallel) {
  const NodeLevels levels = planned_levels(parallel);
  const auto nodes = static_cast<double>(levels.nodes.size());
  if (is_bulk(collective)) return crossings(levels, true) * static_cast<double>(collective.bytes);
  return ring(collective, nodes, nodes);
}

// Returns the bytes between nodes of an exchange in which each pair of ranks exchanges directly.
double of_tensor_parallel(const Collective& collective, const ParallelOptions& parallel) {
  const NodeLevels levels = even_nodes(parallel.tp, parallel.node_size);
  const double direct = crossings(levels, false) * static_cast<double>(collective.bytes);
  if (collective.operation == "all_to_all") return direct / parallel.tp;
  return collective.operation == "all_reduce" ? 2 * direct : direct;
}

// Returns the bytes between nodes of an exchange among `count` data-parallel ranks, `step` ranks apart, in which each
// pair of them exchanges directly.
double of_some_ranks(const Collective& collective, const ParallelOptions& parallel, int count, int step) {
  const NodeLevels all = planned_levels(parallel);
  std::vector<int> node_of;
  int nodes = 0;
  for (int member = 0; member < count; ++member) {
    const bool is_new = member == 0 || all.node(member * step) != all.node((member - 1) * step);
    node_of.push_back(is_new ? nodes++ : nodes - 1);
  }
  const double direct = crossings(NodeLevels(node_of), false) * static_cast<double>(collective.bytes);
  return collective.operation == "all_to_all" ? direct / count : direct;
}

}  // namespace

std::optional<double> between_nodes_bytes(const Collective& collective, const PlanInput& input) {
  const ParallelOptions& parallel = input.parallel;
  if (parallel.node_size == 0 || collective.operation == "send") return std::nullopt;
  const int ranks = parallel.ranks();
  if (collective.group == "dp") return parallel.tp * parallel.pp * of_data_parallel(collective, parallel);
  const int holders = expert_holders(parallel), parts = parallel.tp * parallel.pp;
  if (collective.group == "experts") return holders * parts * of_some_ranks(collective, parallel, parallel.ep, 1);
  if (collective.group == "holders")
    return parallel.ep * parts * of_some_ranks(collective, parallel, holders, parallel.ep);
  if (collective.group == "tp") return parallel.dp * parallel.pp * of_tensor_parallel(collective, parallel);
  const auto nodes = static_cast<double>(even_nodes(ranks, parallel.node_size).nodes.size());
  return ring(collective, nodes, ranks);
}

}  // namespace sestina
