// The norm of a family: RMSNorm with a weight or (gpt) without, or LayerNorm with bias (gpt), with the residual
// addition before it.
#pragma once
#include "core/model/context.hpp"
#include "kernels/model/norm.hpp"

namespace sestina {

template <class Exec, class T>
using NormWeights = typename Weights<Exec, T>::Norm;
template <class Exec, class T>
using NormGradients = typename Gradients<Exec, T>::Norm;

// Computes sum = x + branch, y = norm(sum). Without a branch: y = norm(x), and sum is left alone. sum may be x.
template <class Exec, class T>
void norm_forward(Context<Exec>& context, const NormWeights<Exec, T>& w, Matrix<const T, Exec> x,
                  Matrix<const T, Exec> branch, Matrix<T, Exec> sum, Matrix<T, Exec> y,
                  const NormStatistics<Exec, T>& s) {
  const double eps = context.config().rms_norm_eps;
  if (context.layer_norm())
    add_layer_norm<Exec, T>(context.exec, x, branch, w.weight, w.bias, eps, sum, y, s.mean, s.inverse);
  else if (w.weight.size() == 0)
    gainless_rms_norm<Exec, T>(context.exec, x, branch, context.config().hidden_size, eps, sum, y, s.inverse);
  else if (branch.size() > 0)
    add_rms_norm<Exec, T>(context.exec, x, branch, w.weight, eps, sum, y, s.inverse);
  else
    rms_norm<Exec, T>(context.exec, x, w.weight, eps, y, s.inverse);
}

// Computes dx from dy, with the gradient `residual` that bypasses the norm added where it is not empty; dx may be dy.
// One pass gives the gradients of the norm's own weights too.
template <class Exec, class T>
void norm_backward(Context<Exec>& context, const NormWeights<Exec, T>& w, Matrix<const T, Exec> dy,
                   Matrix<const T, Exec> x, const NormStatistics<Exec, T>& s, Matrix<const T, Exec> residual,
                   Matrix<T, Exec> dx, bool accumulate, const NormGradients<Exec, T>& g) {
  if (context.layer_norm())
    layer_norm_backward<Exec, T>(context.exec, dy, x, w.weight, s.mean, s.inverse, residual, dx, {g.weight, accumulate},
                                 {g.bias, accumulate}, context.workspace);
  else if (w.weight.size() == 0)
    gainless_rms_norm_backward<Exec, T>(context.exec, dy, x, context.config().hidden_size, s.inverse, residual, dx);
  else
    rms_norm_backward<Exec, T>(context.exec, dy, x, w.weight, s.inverse, residual, dx, {g.weight, accumulate},
                               context.workspace);
}

// Norms of q and k: per head (qwen3; gpt, where they may have no weight), or over all heads at once (olmo2), which
// under tensor parallelism lie on several ranks. Then one sum over the ranks serves q and k together, each way.

// q, k or v as a range of columns of a wider matrix.
template <class View>
struct Parts {
  View q, k, v;
};

template <class T, class Exec>
Parts<Matrix<T, Exec>> split(const ModelConfig& c, Matrix<T, Exec> qk, Matrix<T, Exec> qkv) {
  const std::int64_t q = c.query_width(), kv = c.key_value_width();
  return {columns(qk, 0, q), columns(qk, q, q + kv), columns(qkv, q + kv, q + 2 * kv)};
}

// Columns of a norm over all heads, on all ranks together; key and value heads that several ranks hold count only on
// the first of them.
struct HeadSpan {
  std::int64_t q, k;
  bool counts_k;
};
inline HeadSpan head_span(const ModelPart& part) {
  return {part.config.query_width() * part.tp, part.key_value_heads * part.config.head_dim,
          part.first_key_value_holder()};
}

// Two sums of each row, that of q and that of k, one after the other in scratch of the caller's frame.
template <class T, class Exec>
struct RowSums {
  Vector<Acc<T>, Exec> both, q, k;
  explicit RowSums(Context<Exec>& context) {
    const auto n = static_cast<std::size_t>(context.rows());
    both = context.workspace.template take<Acc<T>>(2 * n);
    q = Vector<Acc<T>, Exec>(both.data(), n);
    k = Vector<Acc<T>, Exec>(both.data() + n, n);
  }
};

// Computes out.q, out.k from raw.q, raw.k, and the inverse root mean squares into the activations.
template <class Exec, class T>
void query_norms_forward(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                         const LayerActivations<Exec, T>& a, const Parts<Matrix<T, Exec>>& raw,
                         const Parts<Matrix<T, Exec>>& out) {
  const double eps = context.config().rms_norm_eps;
  const Exec& exec = context.exec;
  if (w.q_norm.size() == 0) {
    const std::int64_t width = context.config().head_dim;
    gainless_rms_norm<Exec, T>(exec, raw.q, {}, width, eps, {}, out.q, a.inverse_q);
    gainless_rms_norm<Exec, T>(exec, raw.k, {}, width, eps, {}, out.k, a.inverse_k);
    return;
  }
  if (!context.splits_query_norms()) {
    rms_norm<Exec, T>(exec, raw.q, w.q_norm, eps, out.q, a.inverse_q);
    rms_norm<Exec, T>(exec, raw.k, w.k_norm, eps, out.k, a.inverse_k);
    return;
  }
  const HeadSpan span = head_span(context.part);
  auto frame = context.workspace.frame();
  const RowSums<T, Exec> squares(context);
  split_row_squares<Exec, T>(exec, raw.q, 1, squares.q);
  split_row_squares<Exec, T>(exec, raw.k, span.counts_k ? 1 : 0, squares.k);
  context.group.sum(exec, squares.both);
  split_rms_norm<Exec, T>(exec, raw.q, w.q_norm, squares.q, span.q, eps, out.q, a.inverse_q);
  split_rms_norm<Exec, T>(exec, raw.k, w.k_norm, squares.k, span.k, eps, out.k, a.inverse_k);
}

// Turns d.q, d.k from the gradients of the normalised q and k into those of the raw ones.
template <class Exec, class T>
void query_norms_backward(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                          const LayerActivations<Exec, T>& a, const Parts<Matrix<T, Exec>>& raw,
                          const Parts<Matrix<T, Exec>>& d, bool accumulate,
                          const typename Gradients<Exec, T>::Layer& g) {
  const Exec& exec = context.exec;
  if (w.q_norm.size() == 0) {
    const std::int64_t width = context.config().head_dim;
    gainless_rms_norm_backward<Exec, T>(exec, d.q, raw.q, width, a.inverse_q, {}, d.q);
    gainless_rms_norm_backward<Exec, T>(exec, d.k, raw.k, width, a.inverse_k, {}, d.k);
    return;
  }
  const RowTotal<Acc<T>, Exec> to_q(g.q_norm, accumulate), to_k(g.k_norm, accumulate);
  if (!context.splits_query_norms()) {
    rms_norm_backward<Exec, T>(exec, d.q, raw.q, w.q_norm, a.inverse_q, {}, d.q, to_q, context.workspace);
    rms_norm_backward<Exec, T>(exec, d.k, raw.k, w.k_norm, a.inverse_k, {}, d.k, to_k, context.workspace);
    return;
  }
  const HeadSpan span = head_span(context.part);
  auto frame = context.workspace.frame();
  const RowSums<T, Exec> along(context);
  row_products<Exec, T>(exec, d.q, raw.q, w.q_norm, along.q);
  row_products<Exec, T>(exec, d.k, raw.k, w.k_norm, along.k);
  context.group.sum(exec, along.both);
  split_rms_norm_backward<Exec, T>(exec, d.q, raw.q, w.q_norm, a.inverse_q, along.q, span.q, 1, d.q, to_q,
                                   context.workspace);
  split_rms_norm_backward<Exec, T>(exec, d.k, raw.k, w.k_norm, a.inverse_k, along.k, span.k, span.counts_k ? 1 : 0, d.k,
                                   to_k, context.workspace);
}

}  // namespace sestina
