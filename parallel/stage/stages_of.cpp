#include "parallel/stage/stages_of.hpp"

#include "core/diagnostics.hpp"
#include "core/dispatch.hpp"
#include "core/optimizer/refresh/refresh_workers.hpp"
#include "parallel/stage/fresh_gradients.hpp"
#include "parallel/stage/make_stages.hpp"
#include "parallel/stage/rank_diagnostics.hpp"
#include "parallel/stage/stage_audit.hpp"

namespace sestina {

namespace {

template <class Exec, class T>
std::unique_ptr<Tie<Exec, T>> make_tie(const RankParts& parts) {
  const auto tie = tied_ends(parts.input, parts.pipe, parts.schedule, parts.part.config.vocab_size);
  if (!tie) return nullptr;
  Communicator& pipeline = *parts.groups.pipeline;
  return std::make_unique<Tie<Exec, T>>(
      Tie<Exec, T>{Channel<Exec, T>(pipeline, "tied weights", tie->weights),
                   Channel<Exec, Acc<T>>(pipeline, "tied gradients", tie->gradients)});
}

}  // namespace

template <class Exec, class T>
SharedParts<Exec, T>::SharedParts(const Exec& exec, const RankParts& parts)
    : groups(parts.groups,
             parts.part.expert_rows(static_cast<std::int64_t>(parts.passes.micro_batch) * parts.passes.sequence),
             parts.trace),
      evaluated(parts.passes.micro_batch, parts.passes.sequence, 1) {
  const auto tokens = static_cast<std::int64_t>(parts.passes.micro_batch) * parts.passes.sequence;
  for (const LinkOptions& link : stage_links(parts.input, parts.pipe, parts.schedule, parts.part.own_rows(tokens)))
    links.push_back(std::make_unique<Link<Exec, T>>(exec, *parts.groups.pipeline, link));
  tie = make_tie<Exec, T>(parts);
}

#define SESTINA_SHARED_PARTS(Exec, T) template struct SharedParts<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_SHARED_PARTS)

namespace {

// Casts stages back to the types that they were made with.
template <class Exec, class T>
std::vector<StageRun<Exec, T>*> runs_of(const PipelineStages& stages) {
  std::vector<StageRun<Exec, T>*> runs;
  for (PipelineStage* stage : stages) runs.push_back(&dynamic_cast<StageRun<Exec, T>&>(*stage));
  return runs;
}

template <class Exec, class T>
std::vector<OwnedTensor<Exec, T>> owned_tensors(const PipelineStages& stages) {
  std::vector<OwnedTensor<Exec, T>> all;
  for (const StageRun<Exec, T>* run : runs_of<Exec, T>(stages))
    all.insert(all.end(), run->stage().tensors().begin(), run->stage().tensors().end());
  return all;
}

template <class Exec, class T>
class StageDiagnostics final : public UpdateDiagnostics {
 public:
  StageDiagnostics(const Exec& exec, std::vector<OwnedTensor<Exec, T>> tensors)
      : exec_(exec), diagnostics_(exec, tensors) {
    for (const OwnedTensor<Exec, T>& tensor : tensors) names_.push_back(tensor.spec.name);
  }
  void before_update() override { diagnostics_.before_update(exec_); }
  std::vector<Tensor> after_update() override {
    std::vector<typename TensorDiagnostics<Exec, T>::Values> values;
    diagnostics_.after_update(exec_, values);
    std::vector<Tensor> all;
    for (std::size_t i = 0; i < values.size(); ++i)
      all.push_back({names_[i], values[i].weight_rms, values[i].update_rms, values[i].spectral_norm});
    return all;
  }

 private:
  Exec exec_;
  TensorDiagnostics<Exec, T> diagnostics_;
  std::vector<std::string> names_;
};

}  // namespace

template <class Exec, class T>
std::vector<std::unique_ptr<ForwardStage>> StagesOf<Exec, T>::make_forward(const RankParts& rank) const {
  const auto shared = std::make_shared<SharedParts<Exec, T>>(exec_, rank);
  std::vector<std::unique_ptr<ForwardStage>> stages;
  for (const StageParts& parts : rank.stages)
    stages.push_back(std::make_unique<StageForward<Exec, T>>(exec_, parts, rank, shared));
  return stages;
}

template <class Exec, class T>
std::vector<std::unique_ptr<PipelineStage>> StagesOf<Exec, T>::make_training(const RankParts& rank) const {
  const auto shared = std::make_shared<SharedParts<Exec, T>>(exec_, rank);
  const OptimizerOptions& optimizer = rank.input.optimizer;
  if (optimizer.refresh_workers() > 0)
    shared->groups.workers =
        std::make_shared<RefreshWorkers>(worker_options(optimizer.refresh), rank.input.deterministic);
  std::vector<std::unique_ptr<PipelineStage>> stages;
  for (const StageParts& parts : rank.stages)
    stages.push_back(std::make_unique<StageRun<Exec, T>>(exec_, parts, rank, shared));
  const PassOptions& passes = rank.passes;
  shared->in_flight = std::make_unique<SlotPool<TokenSlot<Exec>>>(rank.stages.front().place.slots, [&] {
    return TokenSlot<Exec>(passes.micro_batch, passes.sequence, passes.micros);
  });
  return stages;
}

template <class Exec, class T>
std::unique_ptr<FreshGradients> StagesOf<Exec, T>::make_fresh_gradients(const PipelineStages& stages) const {
  return std::make_unique<StageFreshGradients<Exec, T>>(exec_, runs_of<Exec, T>(stages));
}

template <class Exec, class T>
std::unique_ptr<UpdateDiagnostics> StagesOf<Exec, T>::make_diagnostics(const PipelineStages& stages,
                                                                       const Plan& plan) const {
  if (plan.dp * plan.tp > 1 || stages.size() < plan.stages.size())
    return std::make_unique<RankDiagnostics<Exec, T>>(exec_, runs_of<Exec, T>(stages), plan);
  return std::make_unique<StageDiagnostics<Exec, T>>(exec_, owned_tensors<Exec, T>(stages));
}

template <class Exec, class T>
std::unique_ptr<BitAudit> StagesOf<Exec, T>::make_audit(const PipelineStages& stages) const {
  return std::make_unique<StageAudit<Exec, T>>(exec_, runs_of<Exec, T>(stages));
}

std::unique_ptr<StageMaker> make_stages(RunOptions::Space space, TrainOptions::Precision precision) {
  return dispatch(space, precision, [](const auto& exec, auto tag) -> std::unique_ptr<StageMaker> {
    return std::make_unique<StagesOf<std::decay_t<decltype(exec)>, typename decltype(tag)::type>>(exec);
  });
}

#define SESTINA_STAGES_OF(Exec, T) template class StagesOf<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_STAGES_OF)

}  // namespace sestina
