// A transformer language model: its head with the loss, and the whole. D hidden size, V rows of the vocabulary.
#pragma once
#include <memory>
#include <vector>

#include "core/layout/rotation_record.hpp"
#include "core/model/activations.hpp"
#include "core/model/context.hpp"
#include "core/model/seams.hpp"
#include "core/model/weights.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {

// The language-model head and the loss. Logits exist for a slice of rows at a time: product, softmax and loss in place,
// gradient of the slice's input, and its part of the weight gradient. A rank of a tensor-parallel group has the logits
// of its rows of the vocabulary; losses are those of the whole.

// Computes token_loss (N) from the own rows of h (n, D); a target below 0 has loss 0.
template <class Exec, class T>
void head_loss(Context<Exec>&, const Weights<Exec, T>&, Matrix<T, Exec> h, Vector<const std::int32_t, Exec> targets,
               Vector<Acc<T>, Exec> token_loss);

// Computes the losses, dh (n, D), and the gradients of the head (V, D), which it sets or adds to, and of its bias (V),
// which it adds to; all gradients times gradient_scale.
template <class Exec, class T>
void head_loss_backward(Context<Exec>&, const Weights<Exec, T>&, Matrix<T, Exec> h,
                        Vector<const std::int32_t, Exec> targets, Acc<T> gradient_scale, bool accumulate,
                        Vector<Acc<T>, Exec> token_loss, Matrix<T, Exec> dh, const Gradients<Exec, T>&);

// Makes logits (R, V) of products with the head: adds its bias and bounds them, where the model does so.
template <class Exec, class T>
void finish_logits(Context<Exec>&, const Weights<Exec, T>&, Matrix<T, Exec> logits);

// A transformer language model, or the layers of one pipeline stage of it, as functions of (weights, activation slot,
// gradients); under tensor parallelism one rank's part of it. It owns no tensor: only rotary tables, the products'
// caches, and scratch in which nothing outlives a call. After the first forward and backward pass no call allocates.
// Nothing fences but loss_sum.

template <class Exec, class T>
class Transformer {
 public:
  // micro_batch B sequences of length T; N = B * T, of which this rank's part of the residual stream has n rows.
  // deterministic: bits do not depend on the thread count. The group has the ranks of the part and must outlive the
  // model; null: the group of one rank. All ranks of a group make the same calls.
  Transformer(const Exec&, const ModelPart&, LayerRange, int micro_batch, int sequence, bool recompute,
              bool deterministic, GroupOps<Exec>* = nullptr);
  // Makes the whole model on one rank.
  Transformer(const Exec&, const ModelConfig&, LayerRange, int micro_batch, int sequence, bool recompute,
              bool deterministic);

  // Says with which ranks this one shares out experts (ModelPart::ep > 1); they must outlive the model.
  void share_experts(ExpertOps<Exec>* experts) { context_.experts = experts; }

  const ModelPart& part() const { return context_.part; }
  const ModelConfig& config() const { return context_.config(); }  // this rank's sizes
  LayerRange range() const { return range_; }
  const std::vector<TensorSpec>& specs() const { return specs_; }
  Activations<Exec, T> make_slot() const;
  std::size_t workspace_bytes() const { return workspace_.capacity(); }
  Workspace<Exec>& workspace() { return workspace_; }
  Gemm<Exec>& gemm() { return gemm_; }

  // tokens, first_key (N) or empty, the same on all ranks: all must stay until the slot's backward pass. The first
  // stage embeds tokens, later ones start from slot.layers[0].x; the last leaves the normalised output in slot.h, all
  // leave the stream in slot.output.
  void forward(const Weights<Exec, T>&, Activations<Exec, T>&, const TokenRows<Exec>& tokens,
               Vector<const std::int32_t, Exec> first_key, BlockHooks&);

  // Computes slot.token_loss (N) from targets (N) on the last stage, after forward; a target below 0 does not count.
  void loss_only(const Weights<Exec, T>&, Activations<Exec, T>&, Vector<const std::int32_t, Exec> targets);
  // Computes the losses, and the gradient of gradient_scale * (sum of token losses) through head and blocks. Gradients
  // are assigned, or added to where accumulate. gradient_scale: 1 / (tokens of the global batch). Leaves the stage's
  // input gradient in slot.gradient. Uses up the slot.
  void loss_and_backward(const Weights<Exec, T>&, Activations<Exec, T>&, Vector<const std::int32_t, Exec> targets,
                         double gradient_scale, bool accumulate, const Gradients<Exec, T>&, BlockHooks&);
  // Does so on other stages from the gradient of slot.output, given in slot.gradient, with the scale that
  // slot.gradient_scale has for the losses of routers (core/model/experts.hpp).
  void backward(const Weights<Exec, T>&, Activations<Exec, T>&, bool accumulate, const Gradients<Exec, T>&,
                BlockHooks&);

  // Either backward pass in two calls with other work between them, in a slot made for it
  // (Activations::split_backward); targets are the last stage's. after_backward is called for a block when its weights
  // have their gradients.
  void backward_input(const Weights<Exec, T>&, Activations<Exec, T>&, Vector<const std::int32_t, Exec> targets,
                      double gradient_scale, bool accumulate, const Gradients<Exec, T>&, BlockHooks&);
  void backward_weight(const Weights<Exec, T>&, Activations<Exec, T>&, bool accumulate, const Gradients<Exec, T>&,
                       BlockHooks&);

  // Makes the gradients of a block's weights in another form from what passes have added up in their place
  // (FormedWeight::sums), with the weights of those passes; nothing where they added up gradients.
  void finish_gradients(const Weights<Exec, T>&, int block, const Gradients<Exec, T>&);

  // Weights in another form than dense (core/model/linear_form.hpp): merge number `number` (from 1) of one of them, and
  // one as a dense weight (out, in) in device memory. All use the same scratch as a pass, and may wait for the space.
  void merge(const FormedWeight&, std::uint64_t seed, std::int64_t number);
  void assign(const FormedWeight&, std::uint64_t seed, Matrix<const Acc<T>, Exec> dense);
  void effective(const FormedWeight&, Matrix<Acc<T>, Exec> dense);
  RotationMeasure measure(const FormedWeight&, Workspace<Exec>&, Solver<Exec>&);
  double largest_rotation(const FormedWeight&, Workspace<Exec>&);

  // Returns the sum of slot.token_loss in double, the same on all ranks; fences.
  double loss_sum(const Activations<Exec, T>&);
  void loss_sum(const Activations<Exec, T>&, Vector<double, Exec> result);  // (1); a device is not waited for
  // Computes rows [begin, begin + logits.extent(0)) of the logits, after forward, not limited to a slice: logits (rows,
  // V) of this rank's vocabulary.
  void logits(const Weights<Exec, T>&, const Activations<Exec, T>&, int begin, Matrix<T, Exec> logits);

 private:
  using Table = Kokkos::View<float**, Kokkos::LayoutRight, typename Exec::memory_space>;

  void make_rope_tables(const Exec&);
  bool first_stage() const { return range_.begin == 0; }
  bool last_stage() const { return range_.end == static_cast<int>(config().num_hidden_layers); }
  int last_block() const { return 1 + static_cast<int>(config().num_hidden_layers); }
  void head_backward(const Weights<Exec, T>&, Activations<Exec, T>&, Vector<const std::int32_t, Exec> targets,
                     double gradient_scale, bool accumulate, const Gradients<Exec, T>&, BlockHooks&);
  void embedding_forward(const Weights<Exec, T>&, Activations<Exec, T>&);
  void embedding_backward(const Weights<Exec, T>&, Activations<Exec, T>&, bool accumulate, const Gradients<Exec, T>&);

  LayerRange range_;
  bool recompute_;
  std::vector<TensorSpec> specs_;
  GroupOps<Exec> alone_;
  Gemm<Exec> gemm_;
  Workspace<Exec> workspace_;
  Table cosine_, sine_;
  Context<Exec> context_;
};

}  // namespace sestina
