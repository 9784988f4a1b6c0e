// Gradients of a minibatch at the newest weights of all stages. They exist in one process that has all stages whole,
// and cost an additional pass for each update that is sampled (metrics.tensors_every).
#pragma once
#include <vector>

#include "core/optimizer/gradient_norm.hpp"
#include "parallel/stage/stage_run.hpp"

namespace sestina {

template <class Exec, class T>
class StageFreshGradients final : public FreshGradients {
 public:
  // The stages in order; they must outlive it.
  StageFreshGradients(const Exec&, std::vector<StageRun<Exec, T>*>);
  void compute(std::int64_t first, int micros, double gradient_scale) override;
  double cosine(std::size_t stage) override { return kept_[stage].with_kept(exec_); }

 private:
  struct Hooks;
  void pass(const TokenSlot<Exec>&, int micro, double gradient_scale);
  Exec exec_;
  std::vector<StageRun<Exec, T>*> runs_;
  std::vector<GradientCosine<Exec, T>> kept_;
};

}  // namespace sestina
