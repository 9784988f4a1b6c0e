#include "parallel/comm/nodes.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/error.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

Gather::Gather(const Communicator& group, std::unique_ptr<Exchange> first, std::unique_ptr<Exchange> second)
    : first_(std::move(first)), second_(std::move(second)), in_order_(group.runs_in_order()) {}

void Gather::start() {
  first_->start();
  due_ = second_ != nullptr;
  if (due_ && in_order_) start_second();
}

void Gather::test() {
  first_->test();
  if (second_ && !due_) second_->test();
}

bool Gather::finish_first_in(Queue queue) {
  if (due_) first_->finish_in(queue);
  return due_;
}

void Gather::start_second() {
  second_->start();
  due_ = false;
}

void Gather::finish_in(Queue queue) {
  SESTINA_REQUIRE(!due_, "a gather is finished before its second phase");
  first_->finish_in(queue);
  if (second_) second_->finish_in(queue);
}

NodeLevels::NodeLevels(std::vector<int> by_rank) : node_of(std::move(by_rank)) {
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    const auto node = static_cast<std::size_t>(node_of[rank]);
    if (nodes.size() <= node) nodes.resize(node + 1);
    place_of.push_back(static_cast<int>(nodes[node].size()));
    nodes[node].push_back(static_cast<int>(rank));
  }
}

NodeLevels even_nodes(int ranks, int members) {
  std::vector<int> node_of;
  for (int rank = 0; rank < ranks; ++rank) node_of.push_back(rank / members);
  return NodeLevels(std::move(node_of));
}

std::int64_t pairs_between_nodes(const NodeLevels& levels) {
  const auto ranks = static_cast<std::int64_t>(levels.node_of.size());
  std::int64_t pairs = 0;
  for (const auto& node : levels.nodes) {
    const auto mates = static_cast<std::int64_t>(node.size());
    pairs += mates * (ranks - mates);
  }
  return pairs;
}

bool continues_the_tree(const NodeLevels& levels) {
  const std::size_t ranks = levels.nodes[0].size();
  if ((ranks & (ranks - 1)) != 0) return false;
  for (std::size_t n = 0; n < levels.nodes.size(); ++n) {
    const std::vector<int>& node = levels.nodes[n];
    if (node.back() - node.front() + 1 != static_cast<int>(node.size()) || node.size() > ranks) return false;
    if (node.size() != ranks && n + 1 != levels.nodes.size()) return false;
  }
  return true;
}

NodeLevels bulk_levels(const NodeLevels& levels) {
  const int ranks = static_cast<int>(levels.node_of.size());
  return continues_the_tree(levels) ? levels : even_nodes(ranks, ranks);
}

NodeLevels bulk_levels(const Communicator& group) {
  const NodeLevels* levels = group.levels();
  return levels != nullptr ? bulk_levels(*levels) : even_nodes(group.size(), group.size());
}

Gather make_gather(Communicator& group, const char* name, const std::vector<std::vector<Block>>& owned,
                   bool by_library) {
  if (by_library)
    if (auto whole = group.make_all_gather(name, owned)) return {group, std::move(whole), nullptr};
  const NodeLevels levels = bulk_levels(group);
  const int me = group.rank(), here = levels.node(me);
  const auto blocks = [&](int rank) -> const std::vector<Block>& { return owned[static_cast<std::size_t>(rank)]; };
  std::vector<Message> sends, receives, onward, relayed;
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == me) continue;
    const int there = levels.node(peer);
    if (there == here || levels.relay(there, me) == peer) sends.push_back({peer, blocks(me)});
    if (there == here || levels.relay(here, peer) == me) receives.push_back({peer, blocks(peer)});
  }
  for (const int mate : levels.mates(me)) {  // what came to a rank of this node from others
    if (mate == me) continue;
    Message out{mate, {}}, in{mate, {}};
    for (int owner = 0; owner < group.size(); ++owner) {
      if (levels.node(owner) == here) continue;
      const int relay = levels.relay(here, owner);
      Message* message = relay == me ? &out : relay == mate ? &in : nullptr;
      if (message) message->blocks.insert(message->blocks.end(), blocks(owner).begin(), blocks(owner).end());
    }
    onward.push_back(std::move(out));
    relayed.push_back(std::move(in));
  }
  auto first = group.make_exchange(name, std::move(sends), std::move(receives));
  std::unique_ptr<Exchange> second;
  if (levels.nodes.size() > 1) second = group.make_exchange(name, std::move(onward), std::move(relayed));
  return {group, std::move(first), std::move(second)};
}

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

  std::unique_ptr<Communicator> node_, leaders_;  // leaders_: in the order of the nodes; unused on other ranks
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
