// Norms of q and k: per head (qwen3), or over all heads at once (olmo2), which under tensor parallelism lie on several
// ranks. Then one sum over the ranks serves q and k together, each way.
#pragma once
#include "core/model/context.hpp"
#include "kernels/model/norm.hpp"
#include "kernels/model/split_norm.hpp"

namespace sestina {

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

// Columns of a norm over all heads, on all ranks together; key and value heads that several ranks hold count on the
// first of them alone.
struct HeadSpan {
  std::int64_t q, k;
  bool counts_k;
};
inline HeadSpan head_span(const ModelPart& part) {
  return {part.config.query_width() * part.tp, part.key_value_heads * part.config.head_dim,
          part.first_key_value_holder()};
}

// Two sums of each row, of q and of k, side by side in scratch of the caller's frame.
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

// out.q, out.k from raw.q, raw.k, and the inverse root mean squares into the activations.
template <class Exec, class T>
void query_norms_forward(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                         const LayerActivations<Exec, T>& a, const Parts<Matrix<T, Exec>>& raw,
                         const Parts<Matrix<T, Exec>>& out) {
  const double eps = context.config().rms_norm_eps;
  const Exec& exec = context.exec;
  if (!context.splits_query_norms()) {
    rms_norm<Exec, T>(exec, raw.q, w.q_norm, eps, out.q, a.inverse_q);
    rms_norm<Exec, T>(exec, raw.k, w.k_norm, eps, out.k, a.inverse_k);
    return;
  }
  const HeadSpan span = head_span(context.part);
  auto frame = context.workspace.frame();
  const RowSums<T, Exec> squares(context);
  row_squares<Exec, T>(exec, raw.q, 1, squares.q);
  row_squares<Exec, T>(exec, raw.k, span.counts_k ? 1 : 0, squares.k);
  context.group.sum(exec, squares.both);
  split_rms_norm<Exec, T>(exec, raw.q, w.q_norm, squares.q, span.q, eps, out.q, a.inverse_q);
  split_rms_norm<Exec, T>(exec, raw.k, w.k_norm, squares.k, span.k, eps, out.k, a.inverse_k);
}

// d.q, d.k: of the normalised q and k before, of the raw ones after.
template <class Exec, class T>
void query_norms_backward(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                          const LayerActivations<Exec, T>& a, const Parts<Matrix<T, Exec>>& raw,
                          const Parts<Matrix<T, Exec>>& d, bool accumulate,
                          const typename Gradients<Exec, T>::Layer& g) {
  const Exec& exec = context.exec;
  start_sum(exec, g.q_norm, accumulate);
  start_sum(exec, g.k_norm, accumulate);
  if (!context.splits_query_norms()) {
    rms_norm_backward<Exec, T>(exec, d.q, raw.q, w.q_norm, a.inverse_q, {}, d.q, g.q_norm, context.workspace);
    rms_norm_backward<Exec, T>(exec, d.k, raw.k, w.k_norm, a.inverse_k, {}, d.k, g.k_norm, context.workspace);
    return;
  }
  const HeadSpan span = head_span(context.part);
  auto frame = context.workspace.frame();
  const RowSums<T, Exec> along(context);
  row_products<Exec, T>(exec, d.q, raw.q, w.q_norm, along.q);
  row_products<Exec, T>(exec, d.k, raw.k, w.k_norm, along.k);
  context.group.sum(exec, along.both);
  split_rms_norm_backward<Exec, T>(exec, d.q, raw.q, w.q_norm, a.inverse_q, along.q, span.q, 1, d.q, g.q_norm,
                                   context.workspace);
  split_rms_norm_backward<Exec, T>(exec, d.k, raw.k, w.k_norm, a.inverse_k, along.k, span.k, span.counts_k ? 1 : 0, d.k,
                                   g.k_norm, context.workspace);
}

}  // namespace sestina
