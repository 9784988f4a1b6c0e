// Looks for the first value that is not finite in the passes of a stage, block by block, and puts one there on purpose
// (core/planned_fault.hpp). A stage has a probe only where one of both was asked for. Each look waits for the space.
// B sequences of length T, N = B * T tokens, of which this rank has n rows of the residual stream; D hidden size.
#pragma once
#include <optional>
#include <string>

#include "core/layout/arena.hpp"
#include "core/model/activations.hpp"
#include "core/model/first_bad.hpp"

namespace sestina {

template <class Exec, class T>
class PassProbe {
 public:
  // arena: of the stage, whose gradients are looked at; it must outlive the probe.
  PassProbe(const Exec&, const ModelPart&, LayerRange, const Arena<Exec, T>&, int stage, int sequence_length);

  // The next forward pass leaves a NaN in the residual stream after the attention of the middle layer of the stage.
  void spoil_next_forward() { spoils_ = true; }
  void look(bool on);  // where on, forgets what was found and looks at all passes from now on
  const std::optional<FirstBad>& found() const { return found_; }

  // Called at the begin of a pass of micro-batch `micro` of the update. The slot must stay until the pass has ended.
  void begin(const Activations<Exec, T>& slot, int micro);
  // Called from the hooks of the stage (core/model/seams.hpp). input: the gradient of the block's input is there;
  // weights: those of its weights are.
  void after_forward(int block);
  void after_backward(int block, bool input, bool weights);

 private:
  void look_at(PassKind, const Matrix<const T, Exec>&, const std::string& layer, const char* what);
  void look_at_layer(int i);
  void look_at_end();
  void look_at_weights(int block);
  std::string layer_name(int i, const char* module = "") const;
  int sequence_of(std::int64_t row, std::int64_t rows) const;
  bool is_first_stage() const { return range_.begin == 0; }
  bool is_last_stage() const { return range_.end == static_cast<int>(part_.config.num_hidden_layers); }

  Exec exec_;
  ModelPart part_;
  LayerRange range_;
  const Arena<Exec, T>& arena_;
  int stage_, sequence_length_;
  const Activations<Exec, T>* slot_ = nullptr;
  int micro_ = 0, place_ = 0;
  bool spoils_ = false, looks_ = false;
  std::optional<FirstBad> found_;
};

}  // namespace sestina
