// An activation slot: everything a forward pass leaves for its backward pass, in one allocation. What is kept, and how
// large it is, is said in core/layout/model_size.hpp. A slot serves one micro-batch at a time; pipelines hold several.
// Shapes have the letters of that header.
#pragma once
#include <memory>
#include <vector>

#include "core/layout/model_size.hpp"
#include "core/model/seams.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/host_values.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/model/loss.hpp"

namespace sestina {

template <class Exec, class T>
struct NormStatistics {
  Vector<Acc<T>, Exec> inverse, mean;  // mean is empty for RMSNorm
};

// The names and rows are those of LayerSizes. Where a normalised input is not kept on its own, h is x and h2 is x2;
// where q and k have no norm, qk is a range of columns of qkv.
template <class Exec, class T>
struct LayerActivations {
  Matrix<T, Exec> x, h, qkv, qk, attended, projected, x2, h2, up, down;
  Matrix<T, Exec> kept_qkv, kept_o, kept_up, kept_down;  // see LayerSizes; empty where nothing is kept
  Vector<Acc<T>, Exec> lse, inverse_q, inverse_k;
  Vector<Acc<T>, Exec> largest_score;  // (H), not owned; empty unless somebody watches it
  NormStatistics<Exec, T> attention_norm, mlp_norm;
  // Of a mixture of experts, see LayerSizes.
  Matrix<T, Exec> expert_up;
  Matrix<Acc<T>, Exec> router, choice_weights;
  Vector<Acc<T>, Exec> log_sums;
  Matrix<std::int32_t, Exec> chosen, place;
  Vector<std::int32_t, Exec> token;
  Vector<std::int64_t, Exec> counts;
  Kokkos::View<std::int64_t*, HostSide<Exec>> counts_arrived;  // (E), where bring_counts copies them to
  std::shared_ptr<ExpertRows> rows;                            // the same counts on the host
  Vector<std::int64_t, Host> load;  // (E), not owned, to which a pass adds its counts; empty unless somebody does
};

// Brings the counts of a layer to the host, as rows->sent. Waits for the space.
template <class Exec, class T>
void bring_counts(const Exec& exec, const LayerActivations<Exec, T>& layer) {
  Kokkos::deep_copy(exec, layer.counts_arrived, layer.counts);
  exec.fence("rows of experts");
  layer.rows->sent.assign(layer.counts_arrived.data(), layer.counts_arrived.data() + layer.counts_arrived.size());
}

// The gradients that the input part of a block's backward pass leaves for the weight part, where these are two calls.
template <class Exec, class T>
struct BlockGradients {
  Matrix<T, Exec> projected, qkv, inner, down;                   // (N, D), (N, Q + 2K), (N, F), (N, D)
  Matrix<T, Exec> passed_qkv, passed_o, passed_up, passed_down;  // for weights in another form than dense
  Matrix<T, Exec> expert_inner, expert_rows, router;             // (R, W), (R, D), (N, E) of a mixture of experts
};

template <class Exec, class T>
class Activations {
 public:
  Activations(const ModelPart&, LayerRange, int micro_batch, int sequence, bool recompute);

  std::vector<LayerActivations<Exec, T>> layers;  // layers[0].x is the stage's input
  Matrix<T, Exec> embedded;                       // (n, D) embedding before its norm; first stage, where it has one
  NormStatistics<Exec, T> embedding_norm;
  Matrix<T, Exec> output;  // (n, D) residual stream after the last layer
  Matrix<T, Exec> h;       // (n, D) after the final norm; last stage
  NormStatistics<Exec, T> norm;
  Vector<Acc<T>, Exec> token_loss;  // (N); last stage
  Matrix<T, Exec> gradient;         // (n, D) of output before a backward pass, of the stage's input after it
  TokenRows<Exec> tokens;           // as given to the forward pass, not owned; so is the next
  Vector<const std::int32_t, Exec> first_key;
  double gradient_scale = 0;  // of a backward pass that begins with `gradient`: factor of the losses of routers

  // Sets the stage's input to (n, D) elsewhere.
  void bind_input(const Matrix<T, Exec>& x) {
    const bool shared = layers[0].h.data() == layers[0].x.data();  // where h is not kept on its own
    layers[0].x = x;
    if (shared) layers[0].h = x;
  }

  // Makes room for backward passes in two parts.
  void split_backward(const ModelPart&, int micro_batch, int sequence);
  std::vector<BlockGradients<Exec, T>> kept;  // by layer; empty without it

  std::size_t bytes() const { return storage_.size(); }
  // (bytes): the memory of the slot itself, zeros where nothing was written: a checkpoint may take it as a whole.
  std::byte* data() const { return storage_.data(); }

 private:
  Kokkos::View<std::byte*, typename Exec::memory_space> storage_, kept_storage_;
};

}  // namespace sestina
