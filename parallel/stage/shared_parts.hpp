// What the stages of one rank share, in the types that they compute with: tensor-parallel groups, links between stages,
// and the tokens of micro-batches in flight.
#pragma once
#include <memory>
#include <vector>

#include "core/slot_pool.hpp"
#include "parallel/comm/tensor_group.hpp"
#include "parallel/stage/link.hpp"
#include "parallel/step/stage_maker.hpp"

namespace sestina {

class RefreshWorkers;

template <class Exec>
struct StageGroups {
  explicit StageGroups(RankGroups& of) : ranks(of), tensor(*of.grid.tp_group), replicas(*of.replicas) {}
  RankGroups& ranks;
  TensorGroup<Exec> tensor, replicas;
  std::shared_ptr<RefreshWorkers> workers;  // of all stages of this rank; null: no asynchronous refreshes
};

template <class Exec, class T>
struct SharedParts {
  // Collective: channels are groups of their own on a device.
  SharedParts(const Exec&, const RankParts&);

  TokenSlot<Exec>& tokens(std::int64_t micro) {
    return micro == ForwardStage::evaluation ? evaluated : in_flight->of(micro);
  }

  StageGroups<Exec> groups;
  TokenSlot<Exec> evaluated;
  std::unique_ptr<SlotPool<TokenSlot<Exec>>> in_flight;  // null: forward passes alone
  std::vector<std::unique_ptr<Link<Exec, T>>> links;     // by boundary
  std::unique_ptr<Tie<Exec, T>> tie;                     // null: no tied embeddings, or one stage
};

}  // namespace sestina
