#include "core/model/block.hpp"

#include "core/model/attention_layer.hpp"
#include "core/model/linear.hpp"
#include "core/model/mlp_layer.hpp"
#include "core/model/norm_layer.hpp"
#include "kernels/blas/reduce.hpp"

namespace sestina {
namespace {

// Everything up to activations.up; branch is scratch.
template <class Exec, class T>
void forward_to_up(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, LayerActivations<Exec, T>& a,
                   Vector<const std::int32_t, Exec> first_key, Matrix<const T, Exec> stream,
                   Matrix<const T, Exec> pending, Matrix<T, Exec> branch) {
  const Matrix<const T, Exec> x = pending.size() > 0 ? stream : Matrix<const T, Exec>(a.x);
  if (!context.post_norm())
    norm_forward<Exec, T>(context, w.attention_norm, x, pending, a.x, a.h, a.attention_norm);
  else if (pending.size() > 0)
    add<Exec, T>(context.exec, x, pending, a.x);
  attention_forward<Exec, T>(context, w, a, first_key, branch);
  if (context.post_norm())
    add<Exec, T>(context.exec, a.x, branch, a.x2);
  else
    norm_forward<Exec, T>(context, w.mlp_norm, a.x, branch, a.x2, a.h2, a.mlp_norm);
  mlp_forward_up<Exec, T>(context, w, a);
}

}  // namespace

template <class Exec, class T>
void block_forward(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, LayerActivations<Exec, T>& a,
                   Vector<const std::int32_t, Exec> first_key, Matrix<const T, Exec> stream,
                   Matrix<const T, Exec> pending, Matrix<T, Exec> branch) {
  forward_to_up<Exec, T>(context, w, a, first_key, stream, pending, branch);
  mlp_forward_down<Exec, T>(context, w, a, branch);
}

template <class Exec, class T>
void block_recompute(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, LayerActivations<Exec, T>& a,
                     Vector<const std::int32_t, Exec> first_key) {
  auto frame = context.workspace.frame();
  const Matrix<T, Exec> branch = take_own_rows<T>(context);
  forward_to_up<Exec, T>(context, w, a, first_key, {}, {}, branch);
  if (context.post_norm()) mlp_forward_down<Exec, T>(context, w, a, branch);
}

template <class Exec, class T>
void block_backward(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, LayerActivations<Exec, T>& a,
                    Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> gradient, bool accumulate,
                    const typename Gradients<Exec, T>::Layer& g) {
  const ModelConfig& c = context.config();
  auto frame = context.workspace.frame();
  const Matrix<T, Exec> between = take_own_rows<T>(context);  // gradient of x2
  const Matrix<T, Exec> unnormed = context.post_norm() ? take_own_rows<T>(context) : Matrix<T, Exec>();
  {
    auto inner_frame = context.workspace.frame();
    MlpGradients<Exec, T> d{unnormed,
                            take_rows<T>(context, c.intermediate_size),
                            take_passed<T>(context, w.up),
                            take_passed<T>(context, w.down),
                            {}};
    if (!w.down.formed.empty()) d.forward_inner = take_rows<T>(context, c.intermediate_size);
    mlp_backward_input<Exec, T>(context, w, a, gradient, between, d, accumulate, g);
    mlp_backward_weight<Exec, T>(context, w, a, d, accumulate, g);
  }
  AttentionGradients<Exec, T> d{unnormed, take_rows<T>(context, c.query_width()),
                                take_rows<T>(context, c.query_width() + 2 * c.key_value_width()),
                                take_passed<T>(context, w.qkv), take_passed<T>(context, w.o)};
  attention_backward_input<Exec, T>(context, w, a, first_key, between, gradient, d, accumulate, g);
  attention_backward_weight<Exec, T>(context, w, a, d, accumulate, g);
}

template <class Exec, class T>
void block_backward_input(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                          LayerActivations<Exec, T>& a, Vector<const std::int32_t, Exec> first_key,
                          Matrix<T, Exec> gradient, bool accumulate, const typename Gradients<Exec, T>::Layer& g,
                          const BlockGradients<Exec, T>& kept) {
  const ModelConfig& c = context.config();
  const auto keep = [&](const Matrix<T, Exec>& from, const Matrix<T, Exec>& to) {
    convert<Exec, T, T>(context.exec, Vector<const T, Exec>(from.data(), from.size()),
                        Vector<T, Exec>(to.data(), to.size()));
  };
  auto frame = context.workspace.frame();
  const Matrix<T, Exec> between = take_own_rows<T>(context);  // gradient of x2
  const Matrix<T, Exec> unnormed = context.post_norm() ? take_own_rows<T>(context) : Matrix<T, Exec>();
  {
    auto inner_frame = context.workspace.frame();
    MlpGradients<Exec, T> d{unnormed, kept.inner, kept.passed_up, kept.passed_down, {}};
    if (!w.down.formed.empty()) {  // both are needed at a time; `inner` becomes what is kept
      d.inner = take_rows<T>(context, c.intermediate_size);
      d.forward_inner = kept.inner;
    }
    mlp_backward_input<Exec, T>(context, w, a, gradient, between, d, accumulate, g);
    keep(d.down, kept.down);
  }
  AttentionGradients<Exec, T> d{unnormed, take_rows<T>(context, c.query_width()), kept.qkv, kept.passed_qkv,
                                kept.passed_o};
  attention_backward_input<Exec, T>(context, w, a, first_key, between, gradient, d, accumulate, g);
  keep(d.projected, kept.projected);
}

template <class Exec, class T>
void block_backward_weight(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                           const LayerActivations<Exec, T>& a, const BlockGradients<Exec, T>& kept, bool accumulate,
                           const typename Gradients<Exec, T>::Layer& g) {
  mlp_backward_weight<Exec, T>(context, w, a, {kept.down, kept.inner, kept.passed_up, kept.passed_down, {}}, accumulate,
                               g);
  attention_backward_weight<Exec, T>(context, w, a, {kept.projected, {}, kept.qkv, kept.passed_qkv, kept.passed_o},
                                     accumulate, g);
}

#define SESTINA_BLOCK(Exec, T)                                                                                         \
  template void block_forward<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,                        \
                                       LayerActivations<Exec, T>&, Vector<const std::int32_t, Exec>,                   \
                                       Matrix<const T, Exec>, Matrix<const T, Exec>, Matrix<T, Exec>);                 \
  template void block_recompute<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,                      \
                                         LayerActivations<Exec, T>&, Vector<const std::int32_t, Exec>);                \
  template void block_backward<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,                       \
                                        LayerActivations<Exec, T>&, Vector<const std::int32_t, Exec>, Matrix<T, Exec>, \
                                        bool, const typename Gradients<Exec, T>::Layer&);                              \
  template void block_backward_input<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,                 \
                                              LayerActivations<Exec, T>&, Vector<const std::int32_t, Exec>,            \
                                              Matrix<T, Exec>, bool, const typename Gradients<Exec, T>::Layer&,        \
                                              const BlockGradients<Exec, T>&);                                         \
  template void block_backward_weight<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,                \
                                               const LayerActivations<Exec, T>&, const BlockGradients<Exec, T>&, bool, \
                                               const typename Gradients<Exec, T>::Layer&);
SESTINA_INSTANTIATE(SESTINA_BLOCK)

}  // namespace sestina
