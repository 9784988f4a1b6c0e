#include "core/model/block.hpp"

#include "core/model/linear.hpp"
#include "core/model/norm_layer.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/model/activation.hpp"

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
          .scale = c.attention_scale()};
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
  if (c.query_norms()) query_norms_forward<Exec, T>(context, w, a, split<T, Exec>(c, a.qkv, a.qkv), out);
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
  if (c.query_norms())
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

namespace {

template <class Exec>
bool has_mlp(const Context<Exec>& context) {
  return mlp_width(context.config()) > 0;
}

GeluForm gelu_form(const ModelConfig& c) { return c.hidden_act == "gelu" ? GeluForm::exact : GeluForm::tanh; }

bool squares_relu(const ModelConfig& c) { return c.hidden_act == "relu2"; }

// Computes the input of down_proj.
template <class Exec, class T>
void activate(Context<Exec>& context, const Matrix<T, Exec>& up, const Matrix<T, Exec>& inner) {
  if (context.config().gated())
    swiglu<Exec, T>(context.exec, up, inner);
  else if (squares_relu(context.config()))
    relu_squared<Exec, T>(context.exec, up, inner);
  else
    gelu<Exec, T>(context.exec, gelu_form(context.config()), up, inner);
}

// Turns up into its gradient, and d_inner, the gradient of the input of down_proj, into that input.
template <class Exec, class T>
void activate_backward(Context<Exec>& context, const Matrix<T, Exec>& d_inner, const Matrix<T, Exec>& up) {
  if (context.config().gated())
    swiglu_backward<Exec, T>(context.exec, d_inner, up, up, d_inner);
  else if (squares_relu(context.config()))
    relu_squared_backward<Exec, T>(context.exec, d_inner, up, up, d_inner);
  else
    gelu_backward<Exec, T>(context.exec, gelu_form(context.config()), d_inner, up, up, d_inner);
}

// Returns the work of the shared expert, or none where there is none; it refers to `work`.
template <class Exec, class Work>
SharedWork shared_work(const Context<Exec>& context, const Work& work) {
  if (!has_mlp(context)) return {};
  return std::cref(work);
}

// Computes a mixture, of which each tensor-parallel rank has a part of every expert, and sums the parts of all experts
// at once.
template <class Exec, class T>
void mixture_forward_summed(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                            LayerActivations<Exec, T>& a, const Matrix<T, Exec>& down) {
  SESTINA_REQUIRE(!context.post_norm(), "a norm after experts");
  sum_rows<T>(context, down, [&](const Matrix<T, Exec>& partial) {
    const auto shared = [&] {
      auto frame = context.workspace.frame();
      const Matrix<T, Exec> inner = take_wide_rows<T>(context, mlp_width(context.config()));
      activate<Exec, T>(context, a.up, inner);
      linear_product<Exec, T>(context, w.down, inner, a.kept_down, partial);
    };
    experts_forward_down<Exec, T>(context, w, a, shared_work(context, shared), partial);
  });
}

// Turns the activations' up into its gradient, and d.inner into the input of down_proj, made again.
template <class Exec, class T>
void backward_to_up(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, LayerActivations<Exec, T>& a,
                    MlpGradients<Exec, T>& d) {
  linear_backward_input<Exec, T>(context, w.down, d.down, d.inner, d.passed_down);
  if (d.forward_inner.size() > 0) activate<Exec, T>(context, a.up, d.forward_inner);
  activate_backward<Exec, T>(context, d.inner, a.up);
  if (d.forward_inner.size() > 0) d.inner = d.forward_inner;
}

// Computes d_in from what d.down is for a mixture: one sum over tensor-parallel ranks, as forward.
template <class Exec, class T>
void mixture_backward_summed(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                             LayerActivations<Exec, T>& a, MlpGradients<Exec, T>& d, const Matrix<T, Exec>& d_in) {
  sum_rows<T>(context, d_in, [&](const Matrix<T, Exec>& partial) {
    const auto to_up = [&] { backward_to_up<Exec, T>(context, w, a, d); };
    const auto to_input = [&] { linear_backward_input<Exec, T>(context, w.up, a.up, partial, d.passed_up); };
    experts_backward_input<Exec, T>(context, w, a, d.down,
                                    {shared_work(context, to_up), shared_work(context, to_input)}, partial, d.experts);
  });
}

}  // namespace

template <class Exec, class T>
void mlp_forward_up(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, LayerActivations<Exec, T>& a) {
  auto frame = context.workspace.frame();
  const Matrix<T, Exec> x = whole_rows<T>(context, a.h2);
  const auto product = [&] { linear_forward<Exec, T>(context, w.up, x, a.up, a.kept_up); };
  if (context.config().has_experts())
    experts_forward_up<Exec, T>(context, w, x, a, shared_work(context, product));
  else
    product();
}

template <class Exec, class T>
void mlp_forward_down(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, LayerActivations<Exec, T>& a,
                      Matrix<T, Exec> branch) {
  const Matrix<T, Exec> down = context.post_norm() ? a.down : branch;
  if (context.config().has_experts()) return mixture_forward_summed<Exec, T>(context, w, a, down);
  {
    auto frame = context.workspace.frame();
    const Matrix<T, Exec> inner = take_wide_rows<T>(context, mlp_width(context.config()));
    activate<Exec, T>(context, a.up, inner);
    linear_forward_summed<Exec, T>(context, w.down, inner, down, a.kept_down);
  }
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
  if (context.config().has_experts()) {
    mixture_backward_summed<Exec, T>(context, w, a, d, d_in);
  } else {
    backward_to_up<Exec, T>(context, w, a, d);
    linear_backward_input_summed<Exec, T>(context, w.up, a.up, d_in, d.passed_up);
  }
  if (context.post_norm())
    add<Exec, T>(context.exec, d_in, d_out, d_in);
  else
    norm_backward<Exec, T>(context, w.mlp_norm, d_in, a.x2, a.mlp_norm, d_out, d_in, accumulate, g.mlp_norm);
}

template <class Exec, class T>
void mlp_backward_weight(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                         const LayerActivations<Exec, T>& a, const MlpGradients<Exec, T>& d, bool accumulate,
                         const typename Gradients<Exec, T>::Layer& g) {
  auto frame = context.workspace.frame();
  const Matrix<T, Exec> x = whole_rows<T>(context, a.h2);
  const auto products = [&] {
    linear_backward_weight<Exec, T>(context, w.down, d.down, d.inner, accumulate, g.down, a.kept_down, d.passed_down);
    linear_backward_weight<Exec, T>(context, w.up, a.up, x, accumulate, g.up, a.kept_up, d.passed_up);
  };
  if (context.config().has_experts())
    experts_backward_weight<Exec, T>(context, w, a, x, d.experts, accumulate, g, shared_work(context, products));
  else
    products();
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

namespace {

// Computes everything up to activations.up; branch is scratch.
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
                            take_wide_rows<T>(context, mlp_width(c)),
                            take_passed<T>(context, w.up),
                            take_passed<T>(context, w.down),
                            {}};
    if (!w.down.formed.empty()) d.forward_inner = take_wide_rows<T>(context, c.intermediate_size);
    if (c.has_experts()) d.experts = take_expert_gradients<Exec, T>(context, a);
    mlp_backward_input<Exec, T>(context, w, a, gradient, between, d, accumulate, g);
    mlp_backward_weight<Exec, T>(context, w, a, d, accumulate, g);
  }
  AttentionGradients<Exec, T> d{unnormed, take_rows<T>(context, c.query_width()),
                                take_wide_rows<T>(context, c.query_width() + 2 * c.key_value_width()),
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
    if (!w.down.formed.empty()) {  // both are needed at the same time; `inner` becomes what is kept
      d.inner = take_wide_rows<T>(context, c.intermediate_size);
      d.forward_inner = kept.inner;
    }
    if (c.has_experts()) d.experts = kept_expert_gradients<Exec, T>(a, kept);
    mlp_backward_input<Exec, T>(context, w, a, gradient, between, d, accumulate, g);
    if (kept.down.size() > 0) keep(d.down, kept.down);
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
  MlpGradients<Exec, T> d{kept.down, kept.inner, kept.passed_up, kept.passed_down, {}};
  if (context.config().has_experts()) d.experts = kept_expert_gradients<Exec, T>(a, kept);
  mlp_backward_weight<Exec, T>(context, w, a, d, accumulate, g);
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
