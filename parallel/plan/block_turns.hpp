// parallel.shard = "gradients" | "weights" (ZeRO stages 2 and 3, Rajbhandari et al. 2020, for whole matrices at
// owners): blocks of a stage take turns in a few places of memory. A place has the whole gradients of a block from its
// backward pass until they are summed over the data-parallel ranks, and its whole weights around its passes. Layers
// alternate between two places. The embedding, and the final norm with the head, share a third one; where they are
// tied, and so in use at the same time, they lie in it one after the other. No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

#include "core/deck/options.hpp"
#include "core/layout/plan.hpp"
#include "core/layout/rank_layout.hpp"
#include "parallel/plan/pipeline_schedule.hpp"

namespace sestina {

// True where data-parallel ranks keep only what they own of gradients. One of them owns all.
inline bool gradients_in_turn(const ParallelOptions& parallel) {
  return parallel.dp > 1 && parallel.shard != ParallelOptions::Shard::state;
}
// The same of weights, of which one rank by itself need not keep a rounded copy.
inline bool weights_in_turn(const PlanInput& input) { return keeps_masters_alone(input.parallel, input.train); }

// What a rank keeps a part of, as the deck names it.
inline const char* name(ParallelOptions::Shard shard) {
  static constexpr const char* names[] = {"state", "gradients", "weights"};
  return names[static_cast<int>(shard)];
}

inline constexpr int turn_places = 3;
int place_of_block(const StagePlan&, int block);  // 0: embedding and head, 1 and 2: layers

// The memory of the places, in elements.
struct TurnLayout {
  std::vector<std::int64_t> begin;  // by block, or by bucket: its first element
  std::int64_t elements = 0;        // of all places
};
// size: by block, elements of each, multiples of arena_alignment; others of the model are 0.
TurnLayout lay_out_turns(const StagePlan&, const std::vector<std::int64_t>& size);

// Returns the place of each bucket, which is one of a block: those of a block are one after the other.
TurnLayout bucket_turns(const StagePlan&, const std::vector<BucketLayout>&);

// The places of weights: matrices are in one memory, vectors, which have another type, in a second one.
struct WeightTurns {
  std::vector<std::int64_t> offset;  // by spec, in the memory of its kind, elements
  std::int64_t matrices = 0, vectors = 0;
};
// local: the specs as a tensor-parallel rank holds them. Tensors lie in their order, those that follow adjoin.
WeightTurns weight_turns(const StagePlan&, const std::vector<TensorSpec>& local);
void place_weights(const StagePlan&, RankLayout&);  // notes these places in the layout of a rank

// The passes over the blocks of a stage: which weights they read, and which come next.
struct TurnOrder {
  explicit TurnOrder(const StagePlan&);
  // Return the block that the pass reads after this one; -1: none. A backward pass of the embedding reads no weights,
  // unless the embedding has a norm.
  int after_forward(int block) const { return block < last ? block + 1 : -1; }
  int after_backward(int block) const { return block > lowest_read ? block - 1 : -1; }
  bool backward_reads(int block) const { return block >= lowest_read; }
  int first = 0, last = 0;  // blocks of the stage
  int lowest_read = 0;      // by backward passes
};

// The blocks whose weights are in their places.
class ResidentBlocks {
 public:
  explicit ResidentBlocks(const StagePlan&);
  // Returns true where the weights of the block are not in its place: they come now, and those of others go.
  bool bring(int block);
  void forget();  // all weights are new

 private:
  std::vector<int> place_;     // by block; -1: not of this stage
  std::vector<bool> is_here_;  // by block
  bool tied_;
};

// Returns how often the weights of each block come in the actions of a step on the stage, by block.
std::vector<std::int64_t> gathers_of_step(const StagePlan&, const std::vector<Action>&, int stage);

}  // namespace sestina
