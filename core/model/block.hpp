// One transformer block: the attention half, the MLP half, and both together. N tokens, of which this rank has n rows
// of the residual stream; D hidden, F intermediate, Q and K the widths of all query heads and of all key heads.
#pragma once
#include "core/model/context.hpp"
#include "core/model/experts.hpp"
#include "kernels/model/attention.hpp"

namespace sestina {

// The attention half of a block: q, k, v in one product, their norms (qwen3 per head, olmo2 over the whole projection),
// rotary positions, attention, output product.
AttentionShape attention_shape(const ModelConfig&, int batch, int sequence);

// Computes branch (n, D), the own rows, from activations.h; fills qkv, qk, attended, lse (and projected: olmo2).
template <class Exec, class T>
void attention_forward(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                       Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> branch);

// Gradients of the outputs of the two products, for the weight part.
template <class Exec, class T>
struct AttentionGradients {
  Matrix<T, Exec> projected;             // (N, D)
  Matrix<T, Exec> attended;              // (N, Q)
  Matrix<T, Exec> qkv;                   // (N, Q + 2K)
  Matrix<T, Exec> passed_qkv, passed_o;  // take_passed for both layers
};

// Computes d_in (n, D), the gradient of the stream before the attention half, from d_out after it, and the norms' own
// gradients. d_in must not be d_out. Scratch comes with projected (n, D) where a norm lies between (olmo2); all rows of
// projected are left in scratch of the caller's frame, or are d_out itself.
template <class Exec, class T>
void attention_backward_input(Context<Exec>&, const typename Weights<Exec, T>::Layer&, const LayerActivations<Exec, T>&,
                              Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> d_out, Matrix<T, Exec> d_in,
                              AttentionGradients<Exec, T>& scratch, bool accumulate,
                              const typename Gradients<Exec, T>::Layer&);

template <class Exec, class T>
void attention_backward_weight(Context<Exec>&, const typename Weights<Exec, T>::Layer&,
                               const LayerActivations<Exec, T>&, const AttentionGradients<Exec, T>&, bool accumulate,
                               const typename Gradients<Exec, T>::Layer&);

// The MLP half of a block: SwiGLU with gate and up in one product, or GELU (gpt). With a mixture of experts
// (core/model/experts.hpp) the MLP is the shared expert, where there is one, and the mixture is added to it.

// Computes activations.up from activations.h2: all that the backward pass needs in the pre-norm families.
template <class Exec, class T>
void mlp_forward_up(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&);
// Computes branch (n, D), the own rows, from activations.up; fills down and its norm (olmo2).
template <class Exec, class T>
void mlp_forward_down(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                      Matrix<T, Exec> branch);

// Input of the weight part. The gradient of up lies in the activations' own up, which the input part uses up.
template <class Exec, class T>
struct MlpGradients {
  Matrix<T, Exec> down;                    // (N, D) gradient of down_proj's output
  Matrix<T, Exec> inner;                   // (N, F) input of down_proj, made again
  Matrix<T, Exec> passed_up, passed_down;  // take_passed for both layers
  // (N, F) where down_proj is in another form than dense: its input with the bits of the forward pass, so that what is
  // made again from it has the same bits as what was kept. `inner` becomes this.
  Matrix<T, Exec> forward_inner;
  ExpertGradients<Exec, T> experts{};  // of a mixture
};

// Computes d_in (n, D), the gradient of the stream before the MLP half, from d_out after it, and the norm's own
// gradients. d_in must not be d_out. Scratch comes with down (n, D) where a norm lies between (olmo2); all rows of down
// are left in scratch of the caller's frame, or are d_out itself.
template <class Exec, class T>
void mlp_backward_input(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                        Matrix<T, Exec> d_out, Matrix<T, Exec> d_in, MlpGradients<Exec, T>& scratch, bool accumulate,
                        const typename Gradients<Exec, T>::Layer&);

template <class Exec, class T>
void mlp_backward_weight(Context<Exec>&, const typename Weights<Exec, T>::Layer&, const LayerActivations<Exec, T>&,
                         const MlpGradients<Exec, T>&, bool accumulate, const typename Gradients<Exec, T>::Layer&);

// One transformer block. Between blocks the residual stream travels in two parts, stream + pending branch, so that the
// addition is fused with the norm that reads the sum. It has the n rows of this rank (context.hpp).

// Computes activations.x = stream + pending (pending empty: activations.x is there already), then the block. After it
// the stream is activations.x2 plus branch (n, D); pending may be branch.
template <class Exec, class T>
void block_forward(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                   Vector<const std::int32_t, Exec> first_key, Matrix<const T, Exec> stream,
                   Matrix<const T, Exec> pending, Matrix<T, Exec> branch);

// Runs the forward pass once more from activations.x, as far as the backward pass needs it.
template <class Exec, class T>
void block_recompute(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                     Vector<const std::int32_t, Exec> first_key);

// Turns gradient (n, D) from that of the block's output into that of its input. Uses up activations.up.
template <class Exec, class T>
void block_backward(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                    Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> gradient, bool accumulate,
                    const typename Gradients<Exec, T>::Layer&);

// The backward pass in two calls with other work between them: the gradient of the input (and those of norms), then
// those of the products' weights.
template <class Exec, class T>
void block_backward_input(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                          Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> gradient, bool accumulate,
                          const typename Gradients<Exec, T>::Layer&, const BlockGradients<Exec, T>& kept);
template <class Exec, class T>
void block_backward_weight(Context<Exec>&, const typename Weights<Exec, T>::Layer&, const LayerActivations<Exec, T>&,
                           const BlockGradients<Exec, T>& kept, bool accumulate,
                           const typename Gradients<Exec, T>::Layer&);

}  // namespace sestina
