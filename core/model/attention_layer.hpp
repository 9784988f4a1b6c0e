// The attention half of a block: q, k, v in one product, their norms (qwen3 per head, olmo2 over the whole projection),
// rotary positions, attention, output product.
#pragma once
#include "core/model/context.hpp"
#include "kernels/model/attention.hpp"

namespace sestina {

AttentionShape attention_shape(const ModelConfig&, int batch, int sequence);

// branch (n, D), the own rows, from activations.h; fills qkv, qk, attended, lse (and projected: olmo2).
template <class Exec, class T>
void attention_forward(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                       Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> branch);

// Output gradients of the two products, for the weight part.
template <class Exec, class T>
struct AttentionGradients {
  Matrix<T, Exec> projected;             // (N, D)
  Matrix<T, Exec> attended;              // (N, Q)
  Matrix<T, Exec> qkv;                   // (N, Q + 2K)
  Matrix<T, Exec> passed_qkv, passed_o;  // take_passed of both layers
};

// d_in (n, D): gradient of the stream before the attention half, from d_out after it. Also the norms' own gradients.
// d_in must not be d_out. Scratch comes with projected (n, D) where a norm lies between (olmo2); all rows of projected
// are left in scratch of the caller's frame, or are d_out itself.
template <class Exec, class T>
void attention_backward_input(Context<Exec>&, const typename Weights<Exec, T>::Layer&, const LayerActivations<Exec, T>&,
                              Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> d_out, Matrix<T, Exec> d_in,
                              AttentionGradients<Exec, T>& scratch, bool accumulate,
                              const typename Gradients<Exec, T>::Layer&);

template <class Exec, class T>
void attention_backward_weight(Context<Exec>&, const typename Weights<Exec, T>::Layer&,
                               const LayerActivations<Exec, T>&, const AttentionGradients<Exec, T>&, bool accumulate,
                               const typename Gradients<Exec, T>::Layer&);

}  // namespace sestina
