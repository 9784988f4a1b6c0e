// The language-model head and the loss. Logits exist for a slice of rows at a time: product, softmax and loss in place,
// gradient of the slice's input, and its part of the weight gradient. A rank of a tensor-parallel group has the logits
// of its rows of the vocabulary; losses are those of the whole.
#pragma once
#include "core/model/context.hpp"

namespace sestina {

// token_loss (N) from the own rows of h (n, D); a target below 0 has loss 0.
template <class Exec, class T>
void head_loss(Context<Exec>&, Matrix<const T, Exec> head, Matrix<T, Exec> h, Vector<const std::int32_t, Exec> targets,
               Vector<Acc<T>, Exec> token_loss);

// Also dh (n, D) and d_head (V, D) = or += , both times gradient_scale.
template <class Exec, class T>
void head_loss_backward(Context<Exec>&, Matrix<const T, Exec> head, Matrix<T, Exec> h,
                        Vector<const std::int32_t, Exec> targets, Acc<T> gradient_scale, bool accumulate,
                        Vector<Acc<T>, Exec> token_loss, Matrix<T, Exec> dh, Matrix<Acc<T>, Exec> d_head);

}  // namespace sestina
