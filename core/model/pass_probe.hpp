// Looks at what the passes of a stage compute, block by block: for the first value that is not finite, or to keep
// digests of all of it; and puts a fault there on purpose (core/planned_fault.hpp). A stage has a probe only where one
// of these was asked for. Each look waits for the space. B sequences of length T, N = B * T tokens, of which this rank
// has n rows of the residual stream; D hidden size.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/layout/arena.hpp"
#include "core/model/activations.hpp"
#include "core/model/first_bad.hpp"

namespace sestina {

// What a pass leaves in an activation slot.
template <class Exec, class T>
struct PassTensor {
  PassKind pass = PassKind::forward;
  std::string layer, name;     // as in FirstBad
  Matrix<const T, Exec> rows;  // by token, n or N of them; empty where the model has no such tensor
};

// Returns what is there after the forward pass of a block, and was not after that of the one before. The output of a
// layer is the input of the next one, with which it is returned.
template <class Exec, class T>
std::vector<PassTensor<Exec, T>> forward_tensors(const Activations<Exec, T>&, const ModelPart&, LayerRange, int block);
// Returns the gradient that the backward pass of a block has left for the one before.
template <class Exec, class T>
PassTensor<Exec, T> backward_tensor(const Activations<Exec, T>&, const ModelPart&, LayerRange, int block);

// Returns the name of the layer, or of the end of the model, to which the weights of a block belong.
std::string layer_of_block(int block, std::int64_t layers);

template <class Exec, class T>
class PassProbe {
 public:
  // arena: of the stage, whose gradients are looked at; it must outlive the probe.
  PassProbe(const Exec&, const ModelPart&, LayerRange, const Arena<Exec, T>&, int stage, int sequence_length);

  // The next forward pass leaves a NaN in the residual stream after the attention of the middle layer of the stage.
  void spoil_next_forward() { spoils_ = true; }
  // Forward passes of the flip's micro-batch, and of one that is computed again, flip bits of a word of the residual
  // stream after the attention of the stage's layer number flip.tensor modulo their number, before the next layer reads
  // it; none: no pass does.
  void flip_in_forward(const std::optional<BitFlip>& flip) { flip_ = flip; }
  void look(bool on);  // where on, forgets what was found and looks at all passes from now on
  const std::optional<FirstBad>& found() const { return found_; }

  // Where on, forgets the digests and keeps those of all passes from now on, but for gradients of weights.
  void keep_digests(bool on);
  const std::vector<PassDigest>& digests() const { return digests_; }

  // Called at the begin of a pass of micro-batch `micro` of the update, none: of one that is computed again. The slot
  // must stay until the pass has ended.
  void begin(const Activations<Exec, T>& slot, std::optional<int> micro);
  // Called from the hooks of the stage (core/model/seams.hpp). input: the gradient of the block's input is there;
  // weights: those of its weights are.
  void after_forward(int block);
  void after_backward(int block, bool input, bool weights);

 private:
  void look_at(const PassTensor<Exec, T>&, int block);
  void look_at_losses(int block);
  void look_at_weights(int block);
  template <class Value>
  void keep_digest(PassDigest, const Matrix<const Value, Exec>&);
  void flip_stream(std::size_t layer);
  std::int64_t first_row(std::int64_t rows) const;
  int sequence_of(std::int64_t row, std::int64_t rows) const;
  bool is_last_stage() const { return range_.end == static_cast<int>(part_.config.num_hidden_layers); }

  Exec exec_;
  ModelPart part_;
  LayerRange range_;
  const Arena<Exec, T>& arena_;
  int stage_, sequence_length_;
  const Activations<Exec, T>* slot_ = nullptr;
  std::optional<int> micro_;  // none: computed again
  int place_ = 0;
  bool spoils_ = false, looks_ = false, keeps_ = false;
  std::optional<BitFlip> flip_;
  std::optional<FirstBad> found_;
  std::vector<PassDigest> digests_;
  Kokkos::View<std::uint64_t*, typename Exec::memory_space> sums_;  // by sequence; empty until digests are kept
};

}  // namespace sestina
