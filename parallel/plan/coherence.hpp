// Decides when replicas of a matrix are made equal, and counts what that sends. With parallel.partition = "replicated"
// every rank updates its own copy; where results of refreshes are seen as soon as they are ready (visibility =
// "eager"), ranks see them at different updates, and their copies drift apart: preconditioners, and with them weights.
// A synchronisation makes one block the same on all ranks again (Asteria, III-D). A block is a matrix with all of its
// optimizer's state. Decisions here follow from counters that are equal on all ranks, never from what is ready on one
// rank. No Kokkos.
//
// Under tensor parallelism replicas of a whole matrix lie on the homes of the data-parallel ranks, which have the same
// number in their groups; those of a shard that is a matrix by itself (tp_update = "blockwise") lie in the same way.
// Where every rank updates the whole matrix (tp_update = "duplicated") they lie on all ranks of the stage, or, where
// one data-parallel rank owns the matrix, on its tensor-parallel group. When a home has made a matrix equal, it sends
// the shards to its group again.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/layout/plan.hpp"
#include "parallel/comm/nodes.hpp"

namespace sestina {

// The nodes of a data-parallel group as make_grid lays it out.
NodeLevels planned_levels(const ParallelOptions&);
// The ranks with replicas of the same matrix. replica_levels: these ranks by node; replica_rank: the place of a rank
// among them.
NodeLevels replica_levels(const ParallelOptions&);
int replica_rank(const ParallelOptions&, int dp_rank, int tp_rank);
// The nodes of a tensor-parallel group, which begins a node where it spans several.
NodeLevels shard_levels(const ParallelOptions&);

// True for a field whose elements are averaged. Numbers are averaged over the replicas, weighted equally; bases, what
// lies in them, codes and counters come from the replica with the newest results.
bool is_averaged(DType, bool of_basis);

// What says when blocks are made equal.
struct CoherenceRule {
  std::int64_t staleness = 0;  // the number of updates S after which all ranks have seen a result
  std::int64_t budget = 0;     // optimizer.refresh.coherence_every
  double drift = 0;            // optimizer.refresh.coherence_drift
  std::uint64_t seed = 1;      // of the run
};

// A sketch of the weights w of a block on one rank: their products with 16 vectors of signs, which are functions of
// (seed, block, update, element) and so the same on all ranks, and the sum of their squares. For a vector of n fixed
// numbers d the square of its product with random signs has the mean ||d||^2 and a variance of at most 2 ||d||^4. The
// distance of a replica from the mean of all, of which products are known as well, is estimated by the root of the mean
// of 16 squares, which are distributed as ||d||^2 chi^2(16) / 16 where no element is much larger than all others: the
// standard error of the squared distance is sqrt(2 / 16) = 35 % of it, and that of the distance 18 %. Replicas that are
// equal have equal sketches: their estimate is zero. Products are sums in double: of n weights they keep n eps ||w||,
// below 1e-9 of it for a million of them.
inline constexpr std::size_t sketch_signs = 16;
using DriftSketch = std::array<double, sketch_signs + 1>;
std::uint64_t sketch_stream(std::uint64_t seed, std::int64_t block, std::int64_t t);
// Adds n elements, of which the first has the number `first`, a multiple of 8.
void add_to_sketch(std::uint64_t stream, std::uint64_t first, std::span<const float> weights, DriftSketch&);
// Returns the largest estimated distance of a replica from the mean, relative to the root of the mean of their squared
// norms: the same on all ranks that have the same sketches. They lie `apart` sketches from each other.
double estimated_drift(std::span<const DriftSketch> sketches, std::size_t apart);

// Keeps for each block how often, and after which update last, its replicas were made equal.
class CoherenceRegistry {
 public:
  CoherenceRegistry(std::size_t blocks, const CoherenceRule& rule) : blocks_(blocks), rule_(rule) {}

  // True when a block is due after update t, its newest job having been sent at update `sent` (RefreshPort): results
  // may have been seen since the last synchronisation, none is still to be seen, and more updates have passed since
  // than the budget allows. With a bound on the drift a budget of 0 is none.
  bool due(std::size_t block, std::int64_t t, std::int64_t sent) const {
    const bool counts = rule_.drift == 0 || rule_.budget > 0;
    return counts && all_seen(t, sent) && t - blocks_[block].updates > rule_.budget;
  }
  // True when the drift of a block is looked at after update t, which is due if it is beyond the bound.
  bool looks(std::size_t block, std::int64_t t, std::int64_t sent) const {
    return rule_.drift > 0 && all_seen(t, sent) && !due(block, t, sent);
  }
  static bool may_differ(std::int64_t sent) { return sent > 0; }
  const CoherenceRule& rule() const { return rule_; }

  void synchronised(std::size_t block, std::int64_t t) {
    ++blocks_[block].version;
    blocks_[block].updates = t;
  }
  // Notes that replicas cannot differ after update t though nothing was sent: a checkpoint says no more than that.
  void equal(std::size_t block, std::int64_t t) { blocks_[block].updates = t; }

  std::int64_t version(std::size_t block) const { return blocks_[block].version; }  // synchronisations
  std::int64_t last(std::size_t block) const { return blocks_[block].updates; }

 private:
  struct Block {
    std::int64_t version = 0, updates = 0;
  };
  bool all_seen(std::int64_t t, std::int64_t sent) const { return may_differ(sent) && t >= sent + rule_.staleness; }

  std::vector<Block> blocks_;
  CoherenceRule rule_;
};

// The bytes that all ranks of a group send; between_nodes: the part of them that goes from node to node.
struct CoherenceBytes {
  std::int64_t sent = 0, between_nodes = 0;
  void add(const CoherenceBytes& other) {
    sent += other.sent;
    between_nodes += other.between_nodes;
  }
};

// The synchronisations of a rank since the last look.
struct CoherenceCount {
  std::int64_t blocks = 0;
  std::int64_t sketches = 0;  // of blocks
  CoherenceBytes bytes;       // sent by this rank
  double drift = 0;           // largest relative distance (Frobenius) of this rank's weights of a block from the result
  void add(const CoherenceCount& other) {
    blocks += other.blocks;
    sketches += other.sketches;
    bytes.add(other.bytes);
    drift = std::max(drift, other.drift);
  }
};

// Returns the bytes that one synchronisation of a block sends, of whose own bytes `averaged` are averaged and `copied`
// are copied from the newest replica.
CoherenceBytes synchronisation_bytes(std::int64_t averaged, std::int64_t copied, const NodeLevels&);

// coherence_piece: the elements of the pieces in which fields travel, one after the other. coherence_staging_elements:
// the memory of a rank for its own piece, the result, and pieces that come from others.
inline constexpr std::size_t coherence_piece = std::size_t{1} << 16;
std::size_t coherence_staging_elements(const NodeLevels&, int rank);

// The synchronisations of a run, by groups of ranks with the same matrices.
struct CoherencePlan {
  std::int64_t blocks = 0;         // each counted once for its group
  CoherenceBytes synchronisation;  // bytes of all blocks, once, and of the shards sent after them
  double synchronisations = 0;     // how many of a block in one update, in the long run, without those that saves force
  CoherenceBytes sketch;           // bytes of a sketch of all blocks; zero without optimizer.refresh.coherence_drift
  double sketches = 0;  // how many of a block in one update, at most: those of a run that drift never makes equal
  // With a bound on the drift, synchronisations that it starts come on top, which no plan can know.
  double bytes_per_update() const {
    return synchronisations * static_cast<double>(synchronisation.sent) + sketches * static_cast<double>(sketch.sent);
  }
};
CoherencePlan plan_coherence(const PlanInput&, const std::vector<StagePlan>&);

}  // namespace sestina
