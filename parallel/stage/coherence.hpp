// The replicas of the matrices of one stage made equal again (parallel/plan/coherence.hpp says when). Means are formed
// inside each node first, then over the nodes' leaders, weighted by the size of the nodes, and come back the same way;
// bases come from the newest replica, the lowest rank of equals. One rank adds up, in the order of the ranks, and the
// result is copied: all ranks have the same bits. What lies on a device comes and goes by pieces of host memory, in
// which it travels too.
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

  // group: the ranks with replicas of the same matrices, on these nodes. Both must outlive it. complete: what the space
  // waits for that other ranks have to do, before a wait for the space.
  Coherence(const Exec&, Communicator& group, const NodeLevels&, MatrixSet<Exec>&, std::int64_t staleness,
            std::int64_t budget, std::function<void()> complete = {});

  void start();  // the state is what a checkpoint, or nothing, brought: the same on all ranks
  // Which matrices of the set were made equal, the same on all ranks of the group:
  const Matrices& after_update();  // of all matrices: those that are due
  const Matrices& synchronise();   // all that may differ; between updates
  const CoherenceRegistry& registry() const { return registry_; }
  CoherenceCount take_count();

 private:
  struct Block {
    std::size_t matrix = 0;
    std::vector<StateField> averaged = {}, copied = {};  // weights come last of those that are averaged
  };
  void find_blocks();
  const Matrices& make_alike(const std::vector<std::size_t>& blocks);
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
  std::vector<std::size_t> due_;
  Matrices alike_;                                 // of those
  std::vector<int> owners_;                        // of those
  std::vector<std::int64_t> newness_;              // of the blocks of a synchronisation, by rank and block
  Kokkos::View<float*, HostSide<Exec>> received_;  // from others, and the next two after
  float *result_, *own_;                           // pieces
  CoherenceCount count_;
};

}  // namespace sestina
