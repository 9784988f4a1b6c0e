// The stages of one rank for one execution space and one type of numbers, in which the deck's words have become types,
// and what these stages share.
#pragma once
#include <memory>
#include <vector>

#include "core/slot_pool.hpp"
#include "kernels/blas/exec.hpp"
#include "parallel/comm/expert_group.hpp"
#include "parallel/comm/tensor_group.hpp"
#include "parallel/stage/link.hpp"
#include "parallel/step/stage_maker.hpp"

namespace sestina {

class RefreshWorkers;

// The stages of one rank share tensor-parallel groups, links between stages, and the tokens of micro-batches in flight.
// Here these have the types that the stages compute with.
template <class Exec>
struct StageGroups {
  // expert_room, trace: see ExpertGroup.
  StageGroups(RankGroups& of, std::int64_t expert_room, Trace* trace)
      : ranks(of), tensor(*of.grid.tp_group), replicas(*of.replicas), experts(*of.experts, expert_room, trace) {}
  RankGroups& ranks;
  TensorGroup<Exec> tensor, replicas;
  ExpertGroup<Exec> experts;
  std::shared_ptr<RefreshWorkers> workers;  // shared by all stages of this rank; null: no asynchronous refreshes
  void complete() {                         // called before a wait for passes of the space
    tensor.complete();
    experts.complete();
  }
};

template <class Exec, class T>
struct SharedParts {
  // Collective, because channels are groups of their own on a device.
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

// Makes stages for one execution space Exec and one type of numbers T.

template <class Exec, class T>
class StagesOf final : public StageMaker {
 public:
  explicit StagesOf(const Exec& exec = Exec()) : exec_(exec) {}
  std::string space() const override { return exec_.name(); }
  MemorySpace memory() const override { return is_host<Exec> ? MemorySpace::host : MemorySpace::device; }
  std::vector<std::unique_ptr<ForwardStage>> make_forward(const RankParts&) const override;
  std::vector<std::unique_ptr<PipelineStage>> make_training(const RankParts&) const override;
  std::unique_ptr<FreshGradients> make_fresh_gradients(const PipelineStages&) const override;
  std::unique_ptr<UpdateDiagnostics> make_diagnostics(const PipelineStages&, const Plan&) const override;
  std::unique_ptr<BitAudit> make_audit(const PipelineStages&) const override;

 private:
  Exec exec_;
};

}  // namespace sestina
