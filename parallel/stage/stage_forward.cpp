#include "parallel/stage/stage_forward.hpp"

#include <utility>

namespace sestina {

template <class Exec, class T>
StageForward<Exec, T>::StageForward(const Exec& exec, const StageParts<Exec, T>& parts, const ModelPart& part,
                                    const PassOptions& options, GroupOps<Exec>* group, bool training)
    : exec_(exec),
      plan_(parts.plan),
      place_(parts.place),
      stage_(exec, part, plan_.layers, options, parts.layout, group, training),
      slots_(place_.recomputes() ? 1 : place_.slots, [this] { return stage_.make_slot(place_.split); }),
      in_(parts.links.in),
      out_(parts.links.out),
      tie_(parts.links.tie),
      group_(group) {}

template <class Exec, class T>
void StageForward<Exec, T>::send_head(const Weights<Exec, T>& weights, std::int64_t minibatch) {
  const Matrix<T, Exec> to = tie_->weights.to_write(minibatch);
  convert<Exec, T, T>(exec_, Vector<const T, Exec>(weights.embedding.data(), to.size()),
                      Vector<T, Exec>(to.data(), to.size()));
  tie_->weights.send(exec_, minibatch);
}

template <class Exec, class T>
Activations<Exec, T>& StageForward<Exec, T>::evaluation_slot() {
  if (place_.ahead == 0) return slots_.of(0);
  if (!evaluation_) evaluation_ = std::make_unique<Activations<Exec, T>>(stage_.make_slot());
  return *evaluation_;
}

template <class Exec, class T>
double StageForward<Exec, T>::evaluate(const TokenSlot<Exec>& tokens) {
  Activations<Exec, T>& slot = evaluation_slot();
  if (in_) slot.bind_input(in_->receive_activation(Link<Exec, T>::evaluation));
  if (out_) slot.output = out_->activation_to_write(Link<Exec, T>::evaluation);
  stage_.forward(stage_.weights(), slot, tokens.inputs(), tokens.first_key(), hooks());
  if (out_) out_->send_activation(Link<Exec, T>::evaluation);
  constexpr std::int64_t evaluation = Link<Exec, T>::evaluation;
  const bool newer = std::exchange(head_of_, updates_) != updates_;  // the same on both sides
  if (sends_head() && newer) send_head(stage_.weights(), evaluation);
  if (receives_head())
    stage_.bind_head(newer ? tie_->weights.receive(exec_, evaluation) : tie_->weights.place(evaluation), {});
  if (!stage_.is_last()) return 0;
  stage_.model().loss_only(stage_.weights(), slot, tokens.targets());
  if (group_ != nullptr) group_->complete();
  return stage_.model().loss_sum(slot);
}

template <class Exec, class T>
void StageForward<Exec, T>::weights_changed() {
  head_of_ = -1;
  stage_.weights_changed();
  exec_.fence("weights");
}

#define SESTINA_STAGE_FORWARD(Exec, T) template class StageForward<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_STAGE_FORWARD)

}  // namespace sestina
