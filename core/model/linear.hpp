// The dense form of a linear layer, y = x W^T + b: forward, and the two parts of its backward pass.
#pragma once
#include "core/model/context.hpp"
#include "kernels/model/activation.hpp"
#include "kernels/model/thin_product.hpp"

namespace sestina {

template <class Exec, class T>
using LinearWeights = typename Weights<Exec, T>::Linear;
template <class Exec, class T>
using LinearGradients = typename Gradients<Exec, T>::Linear;

// y (N, out) = x (N, in) W^T.
template <class Exec, class T>
void forward_product(Context<Exec>& context, Matrix<const T, Exec> weight, Matrix<const T, Exec> x, Matrix<T, Exec> y) {
  if constexpr (std::is_same_v<Exec, Host>)
    if (context.thin) return thin_product<T>(context.exec, x, weight, y, context.workspace);
  context.gemm.template operator()<T, T>(Op::none, Op::transpose, 1, x, weight, 0, y);
}

// y (N, out) from x (N, in).
template <class Exec, class T>
void linear_forward(Context<Exec>& context, const LinearWeights<Exec, T>& w, Matrix<const T, Exec> x,
                    Matrix<T, Exec> y) {
  forward_product<Exec, T>(context, w.weight, x, y);
  if (w.bias.size() > 0) add_bias<Exec, T>(context.exec, w.bias, y);
}

// Own rows of y (N, out) where each rank holds some of the columns of x (N, in) and of W.
template <class Exec, class T>
void linear_forward_summed(Context<Exec>& context, const LinearWeights<Exec, T>& w, Matrix<const T, Exec> x,
                           Matrix<T, Exec> y) {
  sum_rows<T>(context, y,
              [&](const Matrix<T, Exec>& partial) { forward_product<Exec, T>(context, w.weight, x, partial); });
  if (w.bias.size() > 0) add_bias<Exec, T>(context.exec, w.bias, y);
}

// dx (N, in) = dy W.
template <class Exec, class T>
void linear_backward_input(Context<Exec>& context, const LinearWeights<Exec, T>& w, Matrix<const T, Exec> dy,
                           Matrix<T, Exec> dx) {
  context.gemm.template operator()<T, T>(Op::none, Op::none, 1, dy, w.weight, 0, dx);
}

// Own rows of dx (N, in) where each rank holds some of the columns of dy (N, out) and of the rows of W.
template <class Exec, class T>
void linear_backward_input_summed(Context<Exec>& context, const LinearWeights<Exec, T>& w, Matrix<const T, Exec> dy,
                                  Matrix<T, Exec> dx) {
  sum_rows<T>(context, dx,
              [&](const Matrix<T, Exec>& partial) { linear_backward_input<Exec, T>(context, w, dy, partial); });
}

// dW (out, in) = or += dy^T x, db = or += column sums of dy.
template <class Exec, class T>
void linear_backward_weight(Context<Exec>& context, Matrix<const T, Exec> dy, Matrix<const T, Exec> x, bool accumulate,
                            const LinearGradients<Exec, T>& g) {
  const int beta = accumulate ? 1 : 0;
  if (g.parts == 0) context.gemm.template operator()<T, Acc<T>>(Op::transpose, Op::none, 1, dy, x, beta, g.weight);
  std::int64_t row = 0;
  for (int i = 0; i < g.parts; ++i) {
    const Matrix<Acc<T>, Exec>& part = g.part[static_cast<std::size_t>(i)];
    const auto end = row + static_cast<std::int64_t>(part.extent(0));
    context.gemm.template operator()<T, Acc<T>>(Op::transpose, Op::none, 1, columns(dy, row, end), x, beta, part);
    row = end;
  }
  if (g.bias.size() == 0) return;
  start_sum(context.exec, g.bias, accumulate);
  bias_backward<Exec, T>(context.exec, dy, g.bias, context.workspace);
}

}  // namespace sestina
