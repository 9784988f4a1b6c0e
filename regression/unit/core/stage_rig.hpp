// A whole model as one stage on one rank, for tests: a slot, a micro-batch, passes one by one.
#pragma once
#include <vector>

#include "core/slot_pool.hpp"
#include "core/stage.hpp"

namespace sestina {

template <class Exec, class T>
struct StageRig {
  struct Hooks final : BlockHooks {
    void after_backward(int block) override { stage->accumulate(stage->weights(), block, micro); }
    Stage<Exec, T>* stage = nullptr;
    int micro = 0;
  };

  // optimizer null: forward passes alone.
  StageRig(const ModelConfig& config, const PassOptions& pass, const OptimizerOptions* optimizer)
      : options(pass),
        stage(exec, model_part(config, 1, 0), all_layers(config), pass, lone_layout(tensor_specs(config)), nullptr,
              optimizer != nullptr),
        tokens(pass.micro_batch, pass.sequence, pass.micros) {
    if (optimizer != nullptr) stage.make_optimizer(config, *optimizer);
    slot.push_back(stage.make_slot());
    stage.watch(slot[0]);
    hooks.stage = &stage;
  }
  void load(const std::int32_t* window) { tokens.load(exec, {window, nullptr}); }
  void forward() { stage.forward(stage.weights(), slot[0], tokens.inputs(), tokens.first_key(), hooks); }
  void forward_backward(double gradient_scale, int micro) {
    if (micro == 0) stage.start_step();
    forward();
    hooks.micro = micro;
    stage.backward(stage.weights(), slot[0], tokens.targets(), gradient_scale, micro, hooks);
  }
  void update(std::int64_t t, double factor, double gradient_scale) {
    stage.optimizer().step(exec, t, factor, gradient_scale);
    if (QkClip<Exec, T>* clip = stage.qk_clip()) {
      clip->send(exec, 0);
      exec.fence("qk_clip");
      clip->take();
      clip->apply(exec);
    }
    if (RouterBias<Exec, T>* bias = stage.router_bias()) {
      stage.expert_loads()->take();
      bias->apply(exec, t, *stage.expert_loads());
    }
  }
  double loss() {
    forward();
    stage.model().loss_only(stage.weights(), slot[0], tokens.targets());
    return stage.model().loss_sum(slot[0]);
  }
  std::vector<float> logits(int row) {
    const auto n = static_cast<std::size_t>(stage.model().config().vocab_size);
    const Kokkos::View<T**, Kokkos::LayoutRight, typename Exec::memory_space> device("logits", 1, n);
    stage.model().logits(stage.weights(), slot[0], row, Matrix<T, Exec>(device.data(), 1, n));
    exec.fence();
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), device);
    std::vector<float> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<float>(host(0, i));
    return out;
  }

  Exec exec;
  PassOptions options;
  Stage<Exec, T> stage;
  TokenSlot<Exec> tokens;
  std::vector<Activations<Exec, T>> slot;  // one
  Hooks hooks;
};

}  // namespace sestina
