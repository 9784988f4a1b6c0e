// The norm of a family: RMSNorm, or LayerNorm with bias (gpt), with the residual addition before it.
#pragma once
#include "core/model/context.hpp"
#include "kernels/model/norm.hpp"

namespace sestina {

template <class Exec, class T>
using NormWeights = typename Weights<Exec, T>::Norm;
template <class Exec, class T>
using NormGradients = typename Gradients<Exec, T>::Norm;

// sum = x + branch, y = norm(sum). Without a branch: y = norm(x), and sum is left alone. sum may be x.
template <class Exec, class T>
void norm_forward(Context<Exec>& context, const NormWeights<Exec, T>& w, Matrix<const T, Exec> x,
                  Matrix<const T, Exec> branch, Matrix<T, Exec> sum, Matrix<T, Exec> y,
                  const NormStatistics<Exec, T>& s) {
  const double eps = context.config().rms_norm_eps;
  if (context.layer_norm())
    add_layer_norm<Exec, T>(context.exec, x, branch, w.weight, w.bias, eps, sum, y, s.mean, s.inverse);
  else if (branch.size() > 0)
    add_rms_norm<Exec, T>(context.exec, x, branch, w.weight, eps, sum, y, s.inverse);
  else
    rms_norm<Exec, T>(context.exec, x, w.weight, eps, y, s.inverse);
}

// dx from dy, with the gradient `residual` that bypasses the norm added where it is not empty; dx may be dy. One pass
// gives the gradients of the norm's own weights too.
template <class Exec, class T>
void norm_backward(Context<Exec>& context, const NormWeights<Exec, T>& w, Matrix<const T, Exec> dy,
                   Matrix<const T, Exec> x, const NormStatistics<Exec, T>& s, Matrix<const T, Exec> residual,
                   Matrix<T, Exec> dx, bool accumulate, const NormGradients<Exec, T>& g) {
  start_sum(context.exec, g.weight, accumulate);
  start_sum(context.exec, g.bias, accumulate);
  if (context.layer_norm())
    layer_norm_backward<Exec, T>(context.exec, dy, x, w.weight, s.mean, s.inverse, residual, dx, g.weight, g.bias,
                                 context.workspace);
  else
    rms_norm_backward<Exec, T>(context.exec, dy, x, w.weight, s.inverse, residual, dx, g.weight, context.workspace);
}

}  // namespace sestina
