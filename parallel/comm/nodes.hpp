// The nodes that ranks of a group share, the ways that data takes because of it, and collectives that go these ways. No
// Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/comm/communicator.hpp"

namespace sestina {

// The nodes that ranks of a group share, and the ways that bulk data takes because of it: inside a node from rank to
// rank, between two nodes once for each piece of data, through one rank of the node that is on the far side of its
// owner.
struct NodeLevels {
  std::vector<std::vector<int>> nodes;  // ranks of each node, ascending; nodes in the order of their lowest rank
  std::vector<int> node_of, place_of;   // by rank: its node, and which of the node's ranks it is

  // node_of: the node of each rank; nodes are numbered from 0 by their lowest rank.
  explicit NodeLevels(std::vector<int> node_of);
  // Returns the rank of a node through which its part of what `owner` collects, or sends to all, travels; the owner
  // itself on its own node. Ranks of a node share this work.
  int relay(int node, int owner) const {
    const std::vector<int>& ranks = nodes[static_cast<std::size_t>(node)];
    return ranks[static_cast<std::size_t>(place_of[static_cast<std::size_t>(owner)]) % ranks.size()];
  }
  int node(int rank) const { return node_of[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& mates(int rank) const { return nodes[static_cast<std::size_t>(node(rank))]; }
};

// The levels of `ranks` ranks in order, `members` of them on each node.
NodeLevels even_nodes(int ranks, int members);

// Returns the number of pairs of ranks, in either order, that are on two nodes.
std::int64_t pairs_between_nodes(const NodeLevels&);

// True where sums over nodes of sums inside them are the sums of kernels/blas/sums.hpp over all ranks, to the bit:
// neighbouring ranks, a power of two of them on every node but the last, which may have fewer.
bool continues_the_tree(const NodeLevels&);

// Returns the levels on which bulk data travels: these as they are where they continue the tree, else one node of all
// ranks.
NodeLevels bulk_levels(const NodeLevels&);
NodeLevels bulk_levels(const Communicator&);  // the same of the group's levels, if it has any

// An exchange in which every rank sends what it owns to all others, on several nodes in two phases. The second starts
// at a point of the program, the same on all ranks, never because something has come: so all ranks start the operations
// of all their groups in one order.
class Gather {
 public:
  Gather() = default;
  Gather(const Communicator&, std::unique_ptr<Exchange> first, std::unique_ptr<Exchange> second);  // second: or null
  explicit operator bool() const { return first_ != nullptr; }
  void start();
  void test();  // moves the phase that has started on
  // Returns true where the second phase is due and may be started: the first is complete for what the queue gets from
  // now on.
  bool finish_first_in(Queue);
  void start_second();
  void finish_in(Queue);  // called after the second phase has started

 private:
  std::unique_ptr<Exchange> first_, second_;
  bool in_order_ = false;  // the second may start right after the first
  bool due_ = false;
};

// Makes a gather in the group's bulk levels, or, where the group has one and `by_library`, that of its library.
// owned[rank] are the blocks on this rank that hold what `rank` owns: they are sent where it is this one, else filled.
Gather make_gather(Communicator&, const char* name, const std::vector<std::vector<Block>>& owned,
                   bool by_library = false);

// Collectives of a group whose ranks share nodes: inside each node first, then between one leader of each node, then
// inside each node again, so that the network carries one message for each node and not one for each rank.

// Returns the same group with barrier, all_reduce and broadcast in two levels where it spans several nodes with several
// ranks each; otherwise the group as it is. node_size: so many ranks that follow one another make a node (tests act as
// several nodes with it); 0: ranks that share memory do. Exchanges go directly from rank to rank either way, because
// their bytes are different for every pair; whoever makes them for bulk data asks NodeLevels for its ways.
std::unique_ptr<Communicator> with_node_groups(std::unique_ptr<Communicator>, int node_size);

}  // namespace sestina
