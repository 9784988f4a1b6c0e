// Gradients on their way to their owners, bucket by bucket as the backward pass finishes them: a variable
// reduce-scatter. Every rank sends each owner its piece (one message, the bytes of a ring's reduce-scatter), and owners
// add the pieces up in tree order, so that no bit depends on the library or on arrival. On several nodes in two levels:
// a piece is summed inside each node first, by the rank that stands for its owner there, and one sum of each node goes
// to the owner. What several tensor-parallel ranks hold parts of is summed over them first.
#pragma once
#include <memory>
#include <vector>

#include "core/layout/arena.hpp"
#include "core/model/seams.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/node_levels.hpp"
#include "parallel/plan/exchange_bytes.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {

// A gradient of which each rank of a group has a part.
template <class Exec>
struct PartialGradient {
  int block = 0;
  Vector<float, Exec> gradient;
  GroupOps<Exec>* group = nullptr;
};

template <class Exec>
class GradientReduce {
 public:
  // gradients: the whole buffer, laid out as the buckets say.
  GradientReduce(const Exec&, Communicator& dp_group, const GradientBuckets&, Vector<float, Exec> gradients,
                 std::vector<PartialGradient<Exec>>);

  // The gradients of a block are finished on this rank: starts the buckets that it completes, moves others on.
  void block_done(int block);
  // Returns when this rank has the sums of all that it owns.
  void finish();

  std::int64_t exchanges_per_step() const;  // started in a step

 private:
  // A piece of this rank, where its sum over the node comes to lie, and those of the node's other ranks in rank order.
  struct NodePiece {
    Vector<float, Exec> own, others;
  };
  struct Bucket {
    int block = 0;
    std::vector<NodePiece>
        node_pieces;                    // what this rank sums over its node: what it owns, first, and what it passes on
    Vector<float, Exec> node_sums;      // the other nodes' sums of what it owns, in the order of the nodes
    std::unique_ptr<Exchange> pieces;   // inside the node
    std::unique_ptr<Exchange> between;  // sums of nodes, only where there are several
    std::unique_ptr<Exchange> sums;     // only where every rank needs all sums (replicated)
    enum class State { idle, pieces_under_way, between_under_way, summed } state = State::idle;
  };
  void add_bucket(const BucketLayout&, float* begin, std::size_t slot);
  void route_pieces(Bucket&, const std::vector<std::int64_t>& cut, float* begin);
  void route_between(Bucket&, const std::vector<std::int64_t>& cut, float* begin);
  void start(std::size_t bucket);
  void sum_in_node(Bucket&);
  void add_up(Bucket&);

  Exec exec_;
  Communicator& group_;
  NodeLevels levels_;
  std::vector<Bucket> buckets_;  // in the order in which they are completed
  std::vector<PartialGradient<Exec>> partial_;
  // What comes from other ranks: buckets take turns in these, so memory does not grow with their number.
  Kokkos::View<float*, typename Exec::memory_space> received_[bucket_places];
};

}  // namespace sestina
