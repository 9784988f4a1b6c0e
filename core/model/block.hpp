// One transformer block. Between blocks the residual stream travels in two parts, stream + pending branch, so that the
// addition is fused with the norm that reads the sum. It has the n rows of this rank (context.hpp).
#pragma once
#include "core/model/context.hpp"

namespace sestina {

// activations.x = stream + pending (pending empty: activations.x is there already), then the block. After it the
// stream is activations.x2 plus branch (n, D); pending may be branch.
template <class Exec, class T>
void block_forward(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                   Vector<const std::int32_t, Exec> first_key, Matrix<const T, Exec> stream,
                   Matrix<const T, Exec> pending, Matrix<T, Exec> branch);

// The forward pass once more from activations.x, as far as the backward pass needs it.
template <class Exec, class T>
void block_recompute(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                     Vector<const std::int32_t, Exec> first_key);

// gradient (n, D): of the block's output before, of its input after. Uses up activations.up.
template <class Exec, class T>
void block_backward(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                    Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> gradient, bool accumulate,
                    const typename Gradients<Exec, T>::Layer&);

// The same in two calls with other work between them: the gradient of the input (and those of norms), then those of
// the products' weights.
template <class Exec, class T>
void block_backward_input(Context<Exec>&, const typename Weights<Exec, T>::Layer&, LayerActivations<Exec, T>&,
                          Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> gradient, bool accumulate,
                          const typename Gradients<Exec, T>::Layer&, const BlockGradients<Exec, T>& kept);
template <class Exec, class T>
void block_backward_weight(Context<Exec>&, const typename Weights<Exec, T>::Layer&, const LayerActivations<Exec, T>&,
                           const BlockGradients<Exec, T>& kept, bool accumulate,
                           const typename Gradients<Exec, T>::Layer&);

}  // namespace sestina
