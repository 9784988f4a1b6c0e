// The language-model head and the loss. Logits exist for a slice of rows at a time: product, softmax and loss in place,
// gradient of the slice's input, and its part of the weight gradient.
#pragma once
#include "core/model/context.hpp"

namespace sestina {

// token_loss (N); a target below 0 has loss 0.
template <class Exec, class T>
void head_loss(Context<Exec>&, Matrix<const T, Exec> head, Matrix<const T, Exec> h,
               Vector<const std::int32_t, Exec> targets, Vector<Acc<T>, Exec> token_loss);

// Also dh (N, D) and d_head (V, D) = or += , both times gradient_scale.
template <class Exec, class T>
void head_loss_backward(Context<Exec>&, Matrix<const T, Exec> head, Matrix<const T, Exec> h,
                        Vector<const std::int32_t, Exec> targets, Acc<T> gradient_scale, bool accumulate,
                        Vector<Acc<T>, Exec> token_loss, Matrix<T, Exec> dh, Matrix<Acc<T>, Exec> d_head);

}  // namespace sestina
