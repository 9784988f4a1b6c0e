// Gradients of a minibatch at the newest weights of all stages, in addition to those that an asynchronous pipeline
// computes at older ones: what the delay makes of their direction. For one process that has all stages whole; a pass
// more for each update that is sampled (metrics.tensors_every).
#pragma once
#include <vector>

#include "core/gradient_cosine.hpp"
#include "parallel/stage/stage_run.hpp"

namespace sestina {

template <class Exec, class T>
class FreshGradients {
 public:
  using Runs = std::vector<StageRun<Exec, T>*>;
  // The stages in order; they must outlive it.
  FreshGradients(const Exec&, const Runs&);
  // Between updates: of the next one, whose micro-batches, the first number `first`, have their tokens. Gradients of
  // the stages are written over.
  void compute(const SlotPool<TokenSlot<Exec>>&, std::int64_t first, int micros, double gradient_scale);
  // Of the complete gradients of stage i with those of the last compute(). Fences.
  double cosine(std::size_t stage) { return kept_[stage].with_kept(exec_); }

 private:
  struct Hooks;
  void pass(const TokenSlot<Exec>&, int micro, double gradient_scale);
  Exec exec_;
  const Runs& runs_;
  std::vector<GradientCosine<Exec, T>> kept_;
};

}  // namespace sestina
