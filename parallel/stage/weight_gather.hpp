// Updated weights on their way from their owners to everybody: a variable all-gather, bucket by bucket, under the next
// forward pass. Each tensor's rows are sent from where the owner computes with them to where the others do: nothing is
// staged.
#pragma once
#include <utility>
#include <vector>

#include "core/layout/arena.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/node_levels.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {

template <class Exec, class T>
class WeightGather {
 public:
  WeightGather(const Exec&, Communicator& dp_group, const StagePlan&, const GradientBuckets&, const Arena<Exec, T>&);

  // The owned weights have been updated. Starts everything, first what the forward pass needs first. False: the host
  // has waited for the space.
  bool start();
  // Waits for what the block needs; what the next one needs enters its second phase, the rest is moved on.
  void before_forward(int block);
  void finish();
  double take_wait_seconds() { return std::exchange(wait_seconds_, 0.0); }  // spent in waiting since the last call

  std::int64_t exchanges_per_step() const { return static_cast<std::int64_t>(buckets_.size()); }

 private:
  struct Bucket {
    int block = 0;  // lowest: the first to need it
    Gather weights;
    bool open = false;
  };
  void wait_for(Bucket&);

  Exec exec_;
  Communicator& group_;
  std::vector<Bucket> buckets_;  // in the order of the forward pass
  double wait_seconds_ = 0;
};

}  // namespace sestina
