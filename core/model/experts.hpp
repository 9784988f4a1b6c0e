// The mixture of experts in the place of a block's MLP, as Qwen3-MoE and Mixtral have it: a router chooses k of E
// experts for each of N tokens, each expert is a SwiGLU of width W, and a token's output is the sum of its experts'
// times their weights, in the order of the choices. No token is dropped: rows are sorted by expert
// (kernels/model/token_sort.hpp), R = N k of them, and each expert takes its rows in one product; gate and up are one.
// The products of all experts are one group (Gemm::grouped): for a device two calls forward and four backward, however
// many experts there are (in bf16 gradients of weights, summed in fp32, are one call each).
//
// Where context.experts is set, experts lie on the ranks of its group, of which each has its tokens and, in R' rows
// sorted by own expert and source rank, those for its experts. The host needs the counts: each forward pass of a layer
// waits for the space once. While rows are on their way, there and back, the caller's shared expert works (SharedWork).
// It does so between the same steps where nothing travels, and what it writes is read later alone: the same bits.
//
// Tensor-parallel ranks make the same choices, each from all rows and with the whole router, and each has a part of the
// width of every expert. So outputs, gradients of inputs and gradients of the choices' weights are parts: the caller
// sums the first two, experts_backward_input the third, which the router needs; and the router's part of the gradients
// of inputs comes from each rank for some of the experts.
//
// Losses of the router are added to the training loss; the loss that is logged is without them. For a micro-batch of N
// tokens and each layer of L, with the formulas of kernels/model/router.hpp, they are
//   router_aux_loss_coef / L * E sum_e f_e mean_n p_ne,  router_z_loss_coef / L * mean_n z_n^2,
// weighed by the micro-batch's share of tokens. HF transformers takes f and p over all layers of a batch together.
// Biases that even out loads without a loss: core/optimizer/router_bias.hpp.
#pragma once
#include "core/model/context.hpp"

namespace sestina {

// Chooses the experts from x, all rows (N, D) of activations.h2, and computes activations.expert_up.
template <class Exec, class T>
void experts_forward_up(Context<Exec>&, const typename Weights<Exec, T>::Layer&, Matrix<const T, Exec> x,
                        LayerActivations<Exec, T>&, const SharedWork&);
// Sets branch (N, D) to this rank's part of the sums of the chosen experts, or adds it to what the shared expert put
// there.
template <class Exec, class T>
void experts_forward_down(Context<Exec>&, const typename Weights<Exec, T>::Layer&, const LayerActivations<Exec, T>&,
                          const SharedWork&, Matrix<T, Exec> branch);

// What the input part leaves for the weight part. The gradient of gate and up lies in activations.expert_up.
template <class Exec, class T>
struct ExpertGradients {
  Matrix<T, Exec> inner, rows;  // (R', W) weighted inputs of down, made again; (R', D) gradients of outputs
  Matrix<T, Exec> router;       // (N, E) gradient of logits
};

// Takes them as scratch of the caller's frame.
template <class Exec, class T>
ExpertGradients<Exec, T> take_expert_gradients(Context<Exec>& context, const LayerActivations<Exec, T>& a) {
  const auto here = static_cast<std::size_t>(a.rows->here());
  const ModelConfig& c = context.config();
  return {context.workspace.template take<T>(here, static_cast<std::size_t>(c.moe_intermediate_size)),
          context.workspace.template take<T>(here, static_cast<std::size_t>(c.hidden_size)),
          take_rows<T>(context, c.num_experts)};
}
// Returns them where they are kept between the two parts.
template <class Exec, class T>
ExpertGradients<Exec, T> kept_expert_gradients(const LayerActivations<Exec, T>& a,
                                               const BlockGradients<Exec, T>& kept) {
  const std::int64_t here = a.rows->here();
  return {row_range(kept.expert_inner, 0, here), row_range(kept.expert_rows, 0, here), kept.router};
}

// The two halves of the shared expert's own backward pass: through down_proj, and through up_proj to d_in.
struct SharedBackward {
  SharedWork to_up, to_input;
};

// Sets d_in (N, D) to this rank's part of the gradient of h2 that comes through experts and router, or adds it to what
// the shared expert put there, from d_out (N, D).
template <class Exec, class T>
void experts_backward_input(Context<Exec>&, const typename Weights<Exec, T>::Layer&, const LayerActivations<Exec, T>&,
                            Matrix<const T, Exec> d_out, const SharedBackward&, Matrix<T, Exec> d_in,
                            const ExpertGradients<Exec, T>&);
// Computes the gradients of the weights from x, as above: zero for an expert without tokens; the router's whole and
// equal on all ranks.
template <class Exec, class T>
void experts_backward_weight(Context<Exec>&, const typename Weights<Exec, T>::Layer&, const LayerActivations<Exec, T>&,
                             Matrix<const T, Exec> x, const ExpertGradients<Exec, T>&, bool accumulate,
                             const typename Gradients<Exec, T>::Layer&, const SharedWork&);

}  // namespace sestina
