#include "core/model/mlp_layer.hpp"

#include "core/model/linear.hpp"
#include "core/model/norm_layer.hpp"

namespace sestina {
namespace {

GeluForm gelu_form(const ModelConfig& c) { return c.hidden_act == "gelu" ? GeluForm::exact : GeluForm::tanh; }

// Input of down_proj.
template <class Exec, class T>
void activate(Context<Exec>& context, const Matrix<T, Exec>& up, const Matrix<T, Exec>& inner) {
  if (context.config().gated())
    swiglu<Exec, T>(context.exec, up, inner);
  else
    gelu<Exec, T>(context.exec, gelu_form(context.config()), up, inner);
}

}  // namespace

template <class Exec, class T>
void mlp_forward_up(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, LayerActivations<Exec, T>& a) {
  auto frame = context.workspace.frame();
  linear_forward<Exec, T>(context, w.up, whole_rows<T>(context, a.h2), a.up, a.kept_up);
}

template <class Exec, class T>
void mlp_forward_down(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, LayerActivations<Exec, T>& a,
                      Matrix<T, Exec> branch) {
  auto frame = context.workspace.frame();
  const Matrix<T, Exec> inner = take_rows<T>(context, context.config().intermediate_size);
  activate<Exec, T>(context, a.up, inner);
  const Matrix<T, Exec> down = context.post_norm() ? a.down : branch;
  linear_forward_summed<Exec, T>(context, w.down, inner, down, a.kept_down);
  if (context.post_norm()) norm_forward<Exec, T>(context, w.mlp_norm, down, {}, {}, branch, a.mlp_norm);
}

template <class Exec, class T>
void mlp_backward_input(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, LayerActivations<Exec, T>& a,
                        Matrix<T, Exec> d_out, Matrix<T, Exec> d_in, MlpGradients<Exec, T>& d, bool accumulate,
                        const typename Gradients<Exec, T>::Layer& g) {
  if (context.post_norm())
    norm_backward<Exec, T>(context, w.mlp_norm, d_out, a.down, a.mlp_norm, {}, d.down, accumulate, g.mlp_norm);
  else
    d.down = d_out;
  d.down = whole_rows<T>(context, d.down);
  linear_backward_input<Exec, T>(context, w.down, d.down, d.inner, d.passed_down);
  if (d.forward_inner.size() > 0) activate<Exec, T>(context, a.up, d.forward_inner);
  if (context.config().gated())
    swiglu_backward<Exec, T>(context.exec, d.inner, a.up, a.up, d.inner);
  else
    gelu_backward<Exec, T>(context.exec, gelu_form(context.config()), d.inner, a.up, a.up, d.inner);
  if (d.forward_inner.size() > 0) d.inner = d.forward_inner;
  linear_backward_input_summed<Exec, T>(context, w.up, a.up, d_in, d.passed_up);
  if (context.post_norm())
    add<Exec, T>(context.exec, d_in, d_out, d_in);
  else
    norm_backward<Exec, T>(context, w.mlp_norm, d_in, a.x2, a.mlp_norm, d_out, d_in, accumulate, g.mlp_norm);
}

template <class Exec, class T>
void mlp_backward_weight(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                         const LayerActivations<Exec, T>& a, const MlpGradients<Exec, T>& d, bool accumulate,
                         const typename Gradients<Exec, T>::Layer& g) {
  linear_backward_weight<Exec, T>(context, w.down, d.down, d.inner, accumulate, g.down, a.kept_down, d.passed_down);
  auto frame = context.workspace.frame();
  linear_backward_weight<Exec, T>(context, w.up, a.up, whole_rows<T>(context, a.h2), accumulate, g.up, a.kept_up,
                                  d.passed_up);
}

#define SESTINA_MLP_LAYER(Exec, T)                                                                                    \
  template void mlp_forward_up<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,                      \
                                        LayerActivations<Exec, T>&);                                                  \
  template void mlp_forward_down<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,                    \
                                          LayerActivations<Exec, T>&, Matrix<T, Exec>);                               \
  template void mlp_backward_input<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,                  \
                                            LayerActivations<Exec, T>&, Matrix<T, Exec>, Matrix<T, Exec>,             \
                                            MlpGradients<Exec, T>&, bool, const typename Gradients<Exec, T>::Layer&); \
  template void mlp_backward_weight<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,                 \
                                             const LayerActivations<Exec, T>&, const MlpGradients<Exec, T>&, bool,    \
                                             const typename Gradients<Exec, T>::Layer&);
SESTINA_INSTANTIATE(SESTINA_MLP_LAYER)

}  // namespace sestina
