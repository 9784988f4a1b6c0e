// How an executor is built: what this rank trains of the plan.
#include "core/optimizer/refresh/refresh_workers.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {

template <class Exec, class T>
Executor<Exec, T>::Executor(const Exec& exec, const Plan& plan, Communicator& world, Trace* trace)
    : Base(exec, plan, world, trace),
      exchange_(world, plan_),
      updates_in_passes_(exchange_.lag() > 0),
      scale_(1.0 / (static_cast<double>(plan_.input.train.global_batch) * options_.sequence)) {
  const OptimizerOptions& optimizer = plan_.input.optimizer;
  if (optimizer.refresh_workers() > 0)
    groups_.workers = std::make_shared<RefreshWorkers>(worker_options(optimizer.refresh), plan_.input.deterministic);
  run_of_stage_.resize(at(plan_.pp));
  for (const int stage : this->own_stages()) {
    run_of_stage_[at(stage)] = runs_.size();
    auto run = std::make_unique<StageRun<Exec, T>>(exec_, plan_.input, this->parts_of(stage), part_, options_, groups_,
                                                   trace_);
    runs_.push_back(run.get());
    stages_.push_back(std::move(run));
  }
  first_tensor_.push_back(0);
  for (const StagePlan& stage : plan_.stages) first_tensor_.push_back(first_tensor_.back() + stage.specs.size());
  if (compares_gradients(plan_.input, pipe_, schedule_))
    fresh_ = std::make_unique<FreshGradients<Exec, T>>(exec_, runs_);
  const bool tied = plan_.input.model.tie_word_embeddings;
  ahead_ = forwards_ahead(schedule_);
  receives_ = receive_order(pipe_, schedule_.all, pipeline_->rank(), tied);
  receives_ahead_ = receive_order(pipe_, ahead_, pipeline_->rank(), tied);
  cosines_.resize(runs_.size());
  losses_.resize(at(share_.all));
  whole_.resize(first_tensor_.back() + 1 + losses_.size());
  tokens_ = std::make_unique<SlotPool<TokenSlot<Exec>>>(schedule_.slots[at(runs_.front()->place().number)], [&] {
    return TokenSlot<Exec>(options_.micro_batch, options_.sequence, options_.micros);
  });
}

template <class Exec, class T>
Executor<Exec, T>::~Executor() = default;

#define SESTINA_EXECUTOR(Exec, T) template class Executor<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_EXECUTOR)

}  // namespace sestina
