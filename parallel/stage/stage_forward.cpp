#include "parallel/stage/stage_forward.hpp"

#include <utility>

#include "core/decoder.hpp"

namespace sestina {

template <class Exec, class T>
StageForward<Exec, T>::StageForward(const Exec& exec, const StageParts& parts, const RankParts& rank,
                                    const Shared& shared, bool training)
    : exec_(exec),
      plan_(parts.plan),
      place_(parts.place),
      whole_(rank.input.model),
      shared_(shared),
      stage_(exec, rank.part, plan_.layers, rank.passes, parts.layout, &shared->groups.tensor, training),
      slots_(place_.recomputes() ? 1 : place_.slots, [this] { return stage_.make_slot(place_.split); }),
      in_(place_.number > 0 ? shared->links[at(place_.number - 1)].get() : nullptr),
      out_(place_.number + 1 < rank.pipe.stages ? shared->links[at(place_.number)].get() : nullptr),
      tie_(in_ == nullptr || out_ == nullptr ? shared->tie.get() : nullptr) {
  if (rank.part.ep > 1) stage_.model().share_experts(&shared->groups.experts);
}

template <class Exec, class T>
void StageForward<Exec, T>::send_head(const Weights<Exec, T>& weights, std::int64_t minibatch) {
  const Matrix<T, Exec> to = tie_->weights.to_write(minibatch);
  convert<Exec, T, T>(exec_, Vector<const T, Exec>(weights.embedding.data(), to.size()),
                      Vector<T, Exec>(to.data(), to.size()));
  tie_->weights.send(exec_, minibatch);
}

template <class Exec, class T>
void StageForward<Exec, T>::exchange_head() {
  if (std::exchange(head_of_, updates_) == updates_) return;  // the same on both sides of the tie
  if (sends_head()) send_head(stage_.weights(), evaluation);
  if (receives_head()) tie_->weights.receive(exec_, evaluation);
}

template <class Exec, class T>
Activations<Exec, T>& StageForward<Exec, T>::evaluation_slot() {
  if (place_.ahead == 0) return slots_.of(0);
  if (!evaluation_) evaluation_ = std::make_unique<Activations<Exec, T>>(stage_.make_slot());
  return *evaluation_;
}

template <class Exec, class T>
double StageForward<Exec, T>::evaluate() {
  static_assert(evaluation == Link<Exec, T>::evaluation);
  const TokenSlot<Exec>& tokens = shared_->evaluated;
  Activations<Exec, T>& slot = evaluation_slot();
  if (in_) slot.bind_input(in_->receive_activation(evaluation));
  if (out_) slot.output = out_->activation_to_write(evaluation);
  stage_.forward(stage_.weights(), slot, tokens.inputs(), tokens.first_key(), hooks());
  if (out_) out_->send_activation(evaluation);
  exchange_head();
  if (receives_head()) stage_.bind_head(tie_->weights.place(evaluation), {});
  if (!stage_.is_last()) return 0;
  stage_.model().loss_only(stage_.weights(), slot, tokens.targets());
  shared_->groups.complete();
  return stage_.model().loss_sum(slot);
}

template <class Exec, class T>
void StageForward<Exec, T>::token_losses(float* host) {
  const Vector<Acc<T>, Exec> losses = evaluation_slot().token_loss;
  Kokkos::deep_copy(exec_, Vector<float, Host>(host, losses.size()), losses);
  shared_->groups.complete();
  exec_.fence("token_losses");
}

template <class Exec, class T>
void StageForward<Exec, T>::logits(int row, float* host) {
  const auto n = static_cast<std::size_t>(stage_.model().config().vocab_size);
  const Kokkos::View<T*, typename Exec::memory_space> row_logits("sestina::row_logits", n);
  const Kokkos::View<float*, typename Exec::memory_space> wide("sestina::row_logits_f32", n);
  stage_.model().logits(stage_.weights(), evaluation_slot(), row, Matrix<T, Exec>(row_logits.data(), 1, n));
  convert<Exec, T, float>(exec_, row_logits, wide);
  Kokkos::deep_copy(exec_, Vector<float, Host>(host, n), wide);
  shared_->groups.complete();
  exec_.fence();
}

template <class Exec, class T>
std::unique_ptr<TokenDecoder> StageForward<Exec, T>::make_decoder(const DecoderOptions& options) {
  return std::make_unique<Decoder<Exec, T>>(exec_, whole_, stage_.weights(), options, &shared_->groups.tensor);
}

template <class Exec, class T>
std::vector<std::string> StageForward<Exec, T>::formed_weights() const {
  std::vector<std::string> names;
  for_each_formed(stage_.weights(), [&](const FormedWeight& weight) { names.push_back(weight.name); });
  return names;
}

template <class Exec, class T>
void StageForward<Exec, T>::weights_changed() {
  head_of_ = -1;
  stage_.weights_changed();
  exec_.fence("weights");
}

template <class Exec, class T>
ProductCount StageForward<Exec, T>::take_products() {
  const auto count = stage_.model().gemm().take_count();
  return {count.seconds, count.flops};
}

#define SESTINA_STAGE_FORWARD(Exec, T) template class StageForward<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_STAGE_FORWARD)

}  // namespace sestina
