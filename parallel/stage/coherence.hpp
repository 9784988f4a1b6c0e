// Makes the replicas of the matrices of one stage equal again (parallel/plan/coherence.hpp says when). Means are formed
// inside each node first, then over the nodes' leaders, weighted by the size of the nodes, and come back the same way;
// bases come from the newest replica, that of the lowest rank among equals. One rank adds up, in the order of the
// ranks, and the result is copied: all ranks have the same bits. What lies on a device comes and goes by pieces of host
// memory, in which it travels too.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "core/optimizer/matrix_set.hpp"
#include "kernels/blas/host_values.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/nodes.hpp"
#include "parallel/plan/coherence.hpp"

namespace sestina {

template <class Exec>
class Coherence {
 public:
  using Matrices = std::vector<std::size_t>;

  // group: the ranks with replicas of the same matrices, on these nodes. Group and matrix set must outlive it.
  // complete: completes what the space waits for from other ranks; called before each wait for the space.
  Coherence(const Exec&, Communicator& group, const NodeLevels&, MatrixSet<Exec>&, const CoherenceRule&,
            std::function<void()> complete = {});

  void start();  // called when the state is fresh or from a checkpoint: the same on all ranks
  // Both return which matrices of the set were made equal, the same on all ranks of the group.
  const Matrices& after_update();  // makes the matrices that are due equal
  const Matrices& synchronise();   // makes all that may differ equal; between updates
  const CoherenceRegistry& registry() const { return registry_; }
  CoherenceCount take_count();

 private:
  struct Block {
    std::size_t matrix = 0;
    std::vector<StateField> averaged = {}, copied = {};  // the weights are the last of `averaged`
  };
  void find_blocks();
  const Matrices& make_equal(const std::vector<std::size_t>& blocks);
  void find_drifted(const std::vector<std::size_t>& blocks);
  DriftSketch sketch_of(std::size_t block);
  void count_told(std::size_t bytes);
  void find_newest(const std::vector<std::size_t>& blocks);
  void average(const Block&);
  void copy(const Block&, int owner);
  void mean_of_all(std::size_t n);
  void mean_of_nodes(std::size_t n);
  void pass_on(int owner, std::size_t bytes);
  void send(int peer, const void* data, std::size_t bytes);
  bool leads() const { return leader(levels_.node(group_.rank())) == group_.rank(); }
  int leader(int node) const { return levels_.nodes[static_cast<std::size_t>(node)].front(); }

  Exec exec_;
  Communicator& group_;
  MatrixSet<Exec>& matrices_;
  NodeLevels levels_;
  std::vector<Block> blocks_;
  CoherenceRegistry registry_;
  std::function<void()> complete_;
  std::vector<std::size_t> due_, looked_at_;       // blocks; those whose drift is looked at
  std::vector<DriftSketch> sketches_;              // of these, by rank and block, and own ones after them
  Matrices alike_;                                 // the matrices of these blocks
  std::vector<int> owners_;                        // the ranks with the newest replicas of these
  std::vector<std::int64_t> newness_;              // how new the blocks of a synchronisation are, by rank and block
  Kokkos::View<float*, HostSide<Exec>> received_;  // pieces from others; result_ and own_ lie after them
  float *result_, *own_;                           // one piece each
  CoherenceCount count_;
};

}  // namespace sestina
