#include "parallel/comm/node_groups.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/error.hpp"
#include "parallel/comm/forwarding_communicator.hpp"
#include "parallel/comm/node_levels.hpp"

namespace sestina {
namespace {

class NodeCommunicator final : public ForwardingCommunicator {
 public:
  NodeCommunicator(std::unique_ptr<Communicator> all, std::unique_ptr<Communicator> node,
                   std::unique_ptr<Communicator> leaders, std::vector<int> node_of)
      : ForwardingCommunicator(std::move(all)),
        node_(std::move(node)),
        leaders_(std::move(leaders)),
        levels_(std::move(node_of)) {}

  void barrier() override {
    node_->barrier();
    if (leads()) leaders_->barrier();
    node_->barrier();
  }
  void all_reduce(double* data, std::size_t n, Reduction reduction) override {
    node_->all_reduce(data, n, reduction);
    if (leads()) leaders_->all_reduce(data, n, reduction);
    node_->broadcast(data, n * sizeof(double), 0);
  }
  // The root's node hears it first, whichever rank of it the root is.
  void broadcast(void* data, std::size_t bytes, int root) override {
    const int root_node = levels_.node(root);
    if (levels_.node(rank()) == root_node)
      node_->broadcast(data, bytes, levels_.place_of[static_cast<std::size_t>(root)]);
    if (leads()) leaders_->broadcast(data, bytes, root_node);
    node_->broadcast(data, bytes, 0);
  }
  const NodeLevels* levels() const override { return &levels_; }

 private:
  bool leads() const { return node_->rank() == 0; }

  std::unique_ptr<Communicator> node_, leaders_;  // leaders: of the nodes, in their order; others: a group unused
  NodeLevels levels_;
};

}  // namespace

std::unique_ptr<Communicator> with_node_groups(std::unique_ptr<Communicator> all, int node_size) {
  if (all->size() == 1) return all;
  std::unique_ptr<Communicator> node =
      node_size > 0 ? all->split(all->rank() / node_size, all->rank()) : all->split_by_node();
  // A node is known by its lowest rank; nodes are numbered in the order of these.
  double first = all->rank();
  node->all_reduce(&first, 1, Reduction::min);
  std::vector<double> firsts(static_cast<std::size_t>(all->size()));
  all->all_gather(&first, sizeof first, firsts.data());
  std::vector<double> nodes = firsts;
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  std::unique_ptr<Communicator> leaders = all->split(node->rank() == 0 ? 0 : 1, all->rank());
  if (nodes.size() == 1 || nodes.size() == firsts.size()) return all;  // one level is enough
  std::vector<int> node_of;
  for (const double lowest : firsts)
    node_of.push_back(static_cast<int>(std::lower_bound(nodes.begin(), nodes.end(), lowest) - nodes.begin()));
  return std::make_unique<NodeCommunicator>(std::move(all), std::move(node), std::move(leaders), std::move(node_of));
}

}  // namespace sestina
