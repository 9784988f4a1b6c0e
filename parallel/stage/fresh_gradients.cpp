#include "parallel/stage/fresh_gradients.hpp"

#include <utility>

namespace sestina {

// Hooks that sum micro-batches in a tree, but exchange nothing: no other rank waits for these gradients.
template <class Exec, class T>
struct StageFreshGradients<Exec, T>::Hooks final : BlockHooks {
  Hooks(Stage<Exec, T>& s, int m) : stage(s), micro(m) {}
  void after_backward(int block) override { stage.accumulate(stage.weights(), block, micro); }
  Stage<Exec, T>& stage;
  int micro;
};

template <class Exec, class T>
StageFreshGradients<Exec, T>::StageFreshGradients(const Exec& exec, std::vector<StageRun<Exec, T>*> runs)
    : exec_(exec), runs_(std::move(runs)) {
  for (const auto& run : runs_) {
    run->evaluation_slot();  // made now, not in a step
    kept_.emplace_back(run->stage().arena());
  }
}

template <class Exec, class T>
void StageFreshGradients<Exec, T>::pass(const TokenSlot<Exec>& tokens, int micro, double gradient_scale) {
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    Stage<Exec, T>& stage = runs_[i]->stage();
    Activations<Exec, T>& slot = runs_[i]->evaluation_slot();
    if (i > 0) slot.bind_input(runs_[i - 1]->evaluation_slot().output);
    Hooks hooks(stage, micro);
    stage.forward(stage.weights(), slot, tokens.inputs(), tokens.first_key(), hooks);
  }
  for (std::size_t i = runs_.size(); i-- > 0;) {
    Stage<Exec, T>& stage = runs_[i]->stage();
    Activations<Exec, T>& slot = runs_[i]->evaluation_slot();
    if (i + 1 < runs_.size()) slot.gradient = runs_[i + 1]->evaluation_slot().gradient;
    Hooks hooks(stage, micro);
    stage.backward(stage.weights(), slot, tokens.targets(), gradient_scale, micro, hooks);
  }
}

template <class Exec, class T>
void StageFreshGradients<Exec, T>::compute(std::int64_t first, int micros, double gradient_scale) {
  for (int micro = 0; micro < micros; ++micro)
    pass(runs_.front()->shared().tokens(first + micro), micro, gradient_scale);
  for (GradientCosine<Exec, T>& kept : kept_) kept.keep(exec_);
}

#define SESTINA_FRESH(Exec, T) template class StageFreshGradients<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_FRESH)

}  // namespace sestina
