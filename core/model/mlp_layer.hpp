// The MLP half of a block: SwiGLU with gate and up in one product, or GELU (gpt).
#pragma once
#include "core/model/context.hpp"

namespace sestina {

// activations.up from activations.h2: all that the backward pass needs of the pre-norm families.
template <class Exec, class T>
void mlp_forward_up(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&);
// branch (n, D), the own rows, from activations.up; fills down and its norm (olmo2).
template <class Exec, class T>
void mlp_forward_down(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                      Matrix<T, Exec> branch);

// What the weight part needs. The gradient of up lies in the activations' own up, which the input part uses up.
template <class Exec, class T>
struct MlpGradients {
  Matrix<T, Exec> down;                    // (N, D) gradient of down_proj's output
  Matrix<T, Exec> inner;                   // (N, F) input of down_proj, made again
  Matrix<T, Exec> passed_up, passed_down;  // take_passed of both layers
  // (N, F) where down_proj is in another form than dense: its input with the bits of the forward pass, so that what is
  // made again of it has the same bits as what was kept. `inner` becomes this.
  Matrix<T, Exec> forward_inner;
};

// d_in (n, D): gradient of the stream before the MLP half, from d_out after it. Also the norm's own gradients.
// d_in must not be d_out. Scratch comes with down (n, D) where a norm lies between (olmo2); all rows of down are left
// in scratch of the caller's frame, or are d_out itself.
template <class Exec, class T>
void mlp_backward_input(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                        Matrix<T, Exec> d_out, Matrix<T, Exec> d_in, MlpGradients<Exec, T>& scratch, bool accumulate,
                        const typename Gradients<Exec, T>::Layer&);

template <class Exec, class T>
void mlp_backward_weight(Context<Exec>&, const typename Weights<Exec, T>::Layer&, const LayerActivations<Exec, T>&,
                         const MlpGradients<Exec, T>&, bool accumulate, const typename Gradients<Exec, T>::Layer&);

}  // namespace sestina
