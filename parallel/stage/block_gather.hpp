// Weights of which each data-parallel rank keeps what it owns (parallel.shard = "weights"): before a pass reads a
// block, the ranks send each other what they own of it, to the place in which the block has its turn
// (parallel/plan/block_turns.hpp), while the pass works on the block before. What is in a place stays there until
// another block comes, or until weights are updated.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "core/layout/arena.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/nodes.hpp"
#include "parallel/plan/block_turns.hpp"
#include "parallel/plan/shard_layout.hpp"
#include "parallel/stage/owner_exchange.hpp"

namespace sestina {

template <class Exec, class T>
class BlockGather {
 public:
  // Of the tensors that these ranks exchange (OwnerGroup). The group and the arena, whose weights take turns, must
  // outlive it.
  BlockGather(const Exec&, Communicator& group, const StagePlan&, const GradientBuckets&, const Arena<Exec, T>&,
              const OwnerGroup& = {});

  // Called before a pass reads a block: wait for its weights, and start those of the next one. All ranks of the group
  // call them in the same order.
  void before_forward(int block) { bring(block, order_.after_forward(block)); }
  void before_backward(int block) {
    if (order_.backward_reads(block)) bring(block, order_.after_backward(block));
  }
  void forget();  // called when owned weights were written: what is in the places is old
  void finish();  // waits for what is under way
  double take_wait_seconds() { return std::exchange(wait_seconds_, 0.0); }  // seconds of waiting since the last call

  std::int64_t exchanges_per_step() const { return in_last_step_; }  // those between the last two updates

 private:
  struct OfBlock {
    std::vector<std::size_t> tensors;  // that are owned here, in the arena
    Gather weights;
    bool travels = false, open = false;
  };
  void bring(int block, int next);
  void start(int block);
  void wait_for(OfBlock&);

  Exec exec_;
  Communicator& group_;
  const Arena<Exec, T>& arena_;
  TurnOrder order_;
  ResidentBlocks resident_;
  std::vector<OfBlock> blocks_;  // by block of the model; others than the stage's are empty
  std::int64_t started_ = 0, in_last_step_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace sestina
