// Stages for one execution space and one type of numbers: where the deck's words have become types.
#pragma once
#include "kernels/blas/exec.hpp"
#include "parallel/step/stage_maker.hpp"

namespace sestina {

template <class Exec, class T>
class StagesOf final : public StageMaker {
 public:
  explicit StagesOf(const Exec& exec = Exec()) : exec_(exec) {}
  std::string space() const override { return exec_.name(); }
  MemorySpace memory() const override { return is_host<Exec> ? MemorySpace::host : MemorySpace::device; }
  std::vector<std::unique_ptr<ForwardStage>> make_forward(const RankParts&) const override;
  std::vector<std::unique_ptr<PipelineStage>> make_training(const RankParts&) const override;
  std::unique_ptr<FreshGradients> make_fresh_gradients(const PipelineStages&) const override;
  std::unique_ptr<UpdateDiagnostics> make_diagnostics(const PipelineStages&) const override;

 private:
  Exec exec_;
};

}  // namespace sestina
