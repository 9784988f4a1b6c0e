// The replicas of the matrices of one stage made alike again (parallel/plan/coherence.hpp says when). Means are formed
// inside each node first, then over the nodes' leaders, weighted by the size of the nodes, and come back the same way;
// bases come from the newest replica, the lowest rank of equals. One rank adds up, in the order of the ranks, and the
// result is copied: all ranks have the same bits.
#pragma once
#include <memory>
#include <vector>

#include "core/optimizer/matrix_set.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/node_levels.hpp"
#include "parallel/plan/coherence.hpp"

namespace sestina {

// What synchronisations were since the last look.
struct CoherenceCount {
  std::int64_t blocks = 0;
  CoherenceBytes bytes;  // that this rank sent
  double drift = 0;      // largest relative distance (Frobenius) of this rank's weights of a block from the result
  void add(const CoherenceCount&);
};

template <class Exec>
class Coherence {
 public:
  // group: data-parallel. Both must outlive it.
  Coherence(const Exec&, Communicator& group, MatrixSet<Exec>&, std::int64_t staleness, std::int64_t budget);

  void start();         // the state is what a checkpoint, or nothing, brought: alike on all ranks
  void after_update();  // of all matrices: those that are due
  void synchronise();   // all that may differ; between updates
  const CoherenceRegistry& registry() const { return registry_; }
  CoherenceCount take_count();

 private:
  struct Block {
    std::size_t matrix = 0;
    std::vector<StateField> averaged = {}, copied = {};  // weights come last of those that are averaged
  };
  void find_blocks();
  void synchronise(const std::vector<std::size_t>& blocks);
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
  std::vector<std::size_t> due_;
  std::vector<int> owners_;                           // of those
  std::vector<std::int64_t> newness_;                 // of the blocks of a synchronisation, by rank and block
  Kokkos::View<float*, Kokkos::HostSpace> received_;  // from others, and the next two behind
  float *result_, *own_;                              // pieces
  CoherenceCount count_;
};

}  // namespace sestina
