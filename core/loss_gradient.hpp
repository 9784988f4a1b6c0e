// The mean loss of fixed batches as a function of all weights of a model, in double on the host: its gradient at any
// point, for diagnostics that difference it.
#pragma once
#include <memory>
#include <vector>

#include "core/model/transformer.hpp"
#include "core/slot_pool.hpp"

namespace sestina {

// A batch of the micro-batch size, see BatchView.
struct FixedBatch {
  std::vector<std::int32_t> tokens, first_key;  // (B, T + 1); (B, T) or empty
};

class LossGradient {
 public:
  // A model of dense weights.
  LossGradient(const Host&, const ModelConfig&, int micro_batch, int sequence, const std::vector<FixedBatch>&);

  const std::vector<TensorSpec>& specs() const { return arena_.specs(); }
  std::size_t size() const { return size_; }  // numbers: tensors one after another, in the order of the specs
  // Returns the loss.
  double operator()(const std::vector<double>& at, std::vector<double>& gradient);

 private:
  Host exec_;
  Transformer<Host, double> model_;
  Arena<Host, double> arena_;
  Weights<Host, double> weights_;
  Gradients<Host, double> gradients_;
  Activations<Host, double> slot_;
  std::vector<std::unique_ptr<TokenSlot<Host>>> batches_;
  BlockHooks hooks_;
  std::size_t size_ = 0;
  double scale_ = 1;  // 1 / tokens that count
};

}  // namespace sestina
