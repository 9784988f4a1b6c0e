#include "core/model/attention_layer.hpp"

#include <cmath>

#include "core/model/linear.hpp"
#include "core/model/norm_layer.hpp"
#include "core/model/query_norm.hpp"
#include "kernels/model/rope.hpp"

namespace sestina {
namespace {

template <class Exec, class T>
void rotate(Context<Exec>& context, int direction, Matrix<T, Exec> qk) {
  if (context.cosine.size() > 0)
    rope<Exec, T>(context.exec, context.cosine, context.sine, context.sequence, direction, qk);
}

}  // namespace

AttentionShape attention_shape(const ModelConfig& c, int batch, int sequence) {
  return {.batch = batch,
          .sequence = sequence,
          .heads = static_cast<int>(c.num_attention_heads),
          .kv_heads = static_cast<int>(c.num_key_value_heads),
          .head_dim = static_cast<int>(c.head_dim),
          .scale = 1 / std::sqrt(static_cast<double>(c.head_dim))};
}

template <class Exec, class T>
void attention_forward(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, LayerActivations<Exec, T>& a,
                       Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> branch) {
  const ModelConfig& c = context.config();
  {
    auto frame = context.workspace.frame();
    linear_forward<Exec, T>(context, w.qkv, whole_rows<T>(context, a.h), a.qkv, a.kept_qkv);
  }
  const auto out = split<T, Exec>(c, a.qk, a.qkv);
  if (w.q_norm.size() > 0) query_norms_forward<Exec, T>(context, w, a, split<T, Exec>(c, a.qkv, a.qkv), out);
  rotate<Exec, T>(context, 1, a.qk);
  attention<Exec, T>(context.exec, attention_shape(c, context.batch, context.sequence), out.q, out.k, out.v, first_key,
                     a.attended, a.lse, context.workspace, a.largest_score);
  const Matrix<T, Exec> projected = context.post_norm() ? a.projected : branch;
  linear_forward_summed<Exec, T>(context, w.o, a.attended, projected, a.kept_o);
  if (context.post_norm())
    norm_forward<Exec, T>(context, w.attention_norm, projected, {}, {}, branch, a.attention_norm);
}

template <class Exec, class T>
void attention_backward_input(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                              const LayerActivations<Exec, T>& a, Vector<const std::int32_t, Exec> first_key,
                              Matrix<T, Exec> d_out, Matrix<T, Exec> d_in, AttentionGradients<Exec, T>& d,
                              bool accumulate, const typename Gradients<Exec, T>::Layer& g) {
  const ModelConfig& c = context.config();
  if (context.post_norm())
    norm_backward<Exec, T>(context, w.attention_norm, d_out, a.projected, a.attention_norm, {}, d.projected, accumulate,
                           g.attention_norm);
  else
    d.projected = d_out;
  d.projected = whole_rows<T>(context, d.projected);
  linear_backward_input<Exec, T>(context, w.o, d.projected, d.attended, d.passed_o);

  const auto in = split<T, Exec>(c, a.qk, a.qkv), out = split<T, Exec>(c, d.qkv, d.qkv);
  attention_backward<Exec, T>(context.exec, attention_shape(c, context.batch, context.sequence), d.attended, in.q, in.k,
                              in.v, first_key, a.attended, a.lse, out.q, out.k, out.v, context.workspace);
  rotate<Exec, T>(context, -1, columns(d.qkv, 0, c.query_width() + c.key_value_width()));
  if (w.q_norm.size() > 0)
    query_norms_backward<Exec, T>(context, w, a, split<T, Exec>(c, a.qkv, a.qkv), out, accumulate, g);
  linear_backward_input_summed<Exec, T>(context, w.qkv, d.qkv, d_in, d.passed_qkv);
  if (context.post_norm())
    add<Exec, T>(context.exec, d_in, d_out, d_in);
  else
    norm_backward<Exec, T>(context, w.attention_norm, d_in, a.x, a.attention_norm, d_out, d_in, accumulate,
                           g.attention_norm);
}

template <class Exec, class T>
void attention_backward_weight(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                               const LayerActivations<Exec, T>& a, const AttentionGradients<Exec, T>& d,
                               bool accumulate, const typename Gradients<Exec, T>::Layer& g) {
  linear_backward_weight<Exec, T>(context, w.o, d.projected, a.attended, accumulate, g.o, a.kept_o, d.passed_o);
  auto frame = context.workspace.frame();
  linear_backward_weight<Exec, T>(context, w.qkv, d.qkv, whole_rows<T>(context, a.h), accumulate, g.qkv, a.kept_qkv,
                                  d.passed_qkv);
}

#define SESTINA_ATTENTION_LAYER(Exec, T)                                                                              \
  template void attention_forward<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,                   \
                                           LayerActivations<Exec, T>&, Vector<const std::int32_t, Exec>,              \
                                           Matrix<T, Exec>);                                                          \
  template void attention_backward_input<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,            \
                                                  const LayerActivations<Exec, T>&, Vector<const std::int32_t, Exec>, \
                                                  Matrix<T, Exec>, Matrix<T, Exec>, AttentionGradients<Exec, T>&,     \
                                                  bool, const typename Gradients<Exec, T>::Layer&);                   \
  template void attention_backward_weight<Exec, T>(                                                                   \
      Context<Exec>&, const typename Weights<Exec, T>::Layer&, const LayerActivations<Exec, T>&,                      \
      const AttentionGradients<Exec, T>&, bool, const typename Gradients<Exec, T>::Layer&);
SESTINA_INSTANTIATE(SESTINA_ATTENTION_LAYER)

}  // namespace sestina
