#include "parallel/node_groups.hpp"

#include <algorithm>
#include <utility>

#include "kernels/error.hpp"

namespace sestina {
namespace {

class NodeCommunicator final : public Communicator {
 public:
  NodeCommunicator(std::unique_ptr<Communicator> all, std::unique_ptr<Communicator> node,
                   std::unique_ptr<Communicator> leaders, std::vector<int> node_of)
      : all_(std::move(all)), node_(std::move(node)), leaders_(std::move(leaders)), node_of_(std::move(node_of)) {}
  int size() const override { return all_->size(); }
  int rank() const override { return all_->rank(); }

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
    const int root_node = node_of_[static_cast<std::size_t>(root)];
    const auto begin = node_of_.begin();
    const int place = static_cast<int>(std::count(begin, begin + root, root_node));  // of the root in its node
    if (node_of_[static_cast<std::size_t>(rank())] == root_node) node_->broadcast(data, bytes, place);
    if (leads()) leaders_->broadcast(data, bytes, root_node);
    node_->broadcast(data, bytes, 0);
  }
  void all_gather(const void* mine, std::size_t bytes, void* all) override { all_->all_gather(mine, bytes, all); }
  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    return all_->make_exchange(name, std::move(sends), std::move(receives));
  }
  void send(int peer, const void* data, std::size_t bytes) override { all_->send(peer, data, bytes); }
  void receive(int peer, void* data, std::size_t bytes) override { all_->receive(peer, data, bytes); }
  void wait(const char* name) override { all_->wait(name); }
  std::unique_ptr<Communicator> split(int color, int key) override { return all_->split(color, key); }
  std::unique_ptr<Communicator> split_by_node() override { return all_->split_by_node(); }

 private:
  bool leads() const { return node_->rank() == 0; }

  std::unique_ptr<Communicator> all_, node_, leaders_;  // leaders: of the nodes, in their order; others: a group unused
  std::vector<int> node_of_;                            // by rank
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
