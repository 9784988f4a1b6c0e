#include "core/model/transformer.hpp"

#include <algorithm>

#include "core/model/block.hpp"
#include "core/model/linear_form.hpp"
#include "core/model/norm_layer.hpp"
#include "core/model/pass_scratch.hpp"
#include "core/model/rope_table.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/model/activation.hpp"
#include "kernels/model/loss.hpp"

namespace sestina {

namespace {

template <class Exec>
SoftCap soft_cap_of(const Context<Exec>& context) {
  const ModelConfig& c = context.config();
  const bool root = c.softcapping_form == ModelConfig::SoftcapForm::root;
  return {c.final_logit_softcapping, root ? SoftCap::Form::root : SoftCap::Form::tanh};
}

// Calls body(begin, end, logits) for each slice of rows; logits (end - begin, V) are those of the slice.
template <class Exec, class T, class Body>
void for_slices(Context<Exec>& context, const Weights<Exec, T>& w, const Matrix<const T, Exec>& h, const Body& body) {
  const int n = context.rows(), step = logit_rows(context.part, n, sizeof(T));
  auto frame = context.workspace.frame();
  const Matrix<T, Exec> buffer = take_apart<T>(context.workspace, step, static_cast<std::int64_t>(w.head.extent(0)));
  for (int begin = 0; begin < n; begin += step) {
    const int end = begin + step < n ? begin + step : n;
    const Matrix<T, Exec> logits = row_range(buffer, 0, end - begin);
    context.gemm.template operator()<T, T>(Op::none, Op::transpose, 1, row_range(h, begin, end), w.head, 0, logits);
    finish_logits<Exec, T>(context, w, logits);
    body(begin, end, logits);
  }
}

template <class View>
View part(const View& v, int begin, int end) {
  return Kokkos::subview(v, std::pair<int, int>(begin, end));
}

// Computes the losses of a slice, and their gradient in the place of its logits.
template <class Exec, class T>
void slice_loss(Context<Exec>& context, Vector<const std::int32_t, Exec> targets, Acc<T> scale, bool want_gradient,
                const Matrix<T, Exec>& logits, Vector<Acc<T>, Exec> loss) {
  if (context.part.tp == 1) {
    softmax_cross_entropy<Exec, T>(context.exec, targets, scale, want_gradient, logits, loss, soft_cap_of(context));
    return;
  }
  auto frame = context.workspace.frame();
  const int rows = static_cast<int>(logits.extent(0));
  const auto first = static_cast<std::int32_t>(context.part.vocabulary_begin);
  const Vector<Acc<T>, Exec> largest = context.workspace.template take<Acc<T>>(static_cast<std::size_t>(rows));
  const Vector<Acc<T>, Exec> sums = context.workspace.template take<Acc<T>>(2 * static_cast<std::size_t>(rows));
  const Vector<Acc<T>, Exec> sum = part(sums, 0, rows), picked = part(sums, rows, 2 * rows);
  row_largest<Exec, T>(context.exec, targets, logits, largest);
  context.group.max(context.exec, largest);
  row_exponentials<Exec, T>(context.exec, targets, first, largest, logits, sum, picked);
  context.group.sum(context.exec, sums);
  split_cross_entropy<Exec, T>(context.exec, targets, first, largest, sum, picked, scale, want_gradient, logits, loss,
                               soft_cap_of(context));
}

}  // namespace

template <class Exec, class T>
void finish_logits(Context<Exec>& context, const Weights<Exec, T>& w, Matrix<T, Exec> logits) {
  if (w.head_bias.size() > 0) add_bias<Exec, T>(context.exec, w.head_bias, logits);
  soft_cap<Exec, T>(context.exec, soft_cap_of(context), logits);
}

template <class Exec, class T>
void head_loss(Context<Exec>& context, const Weights<Exec, T>& w, Matrix<T, Exec> h,
               Vector<const std::int32_t, Exec> targets, Vector<Acc<T>, Exec> token_loss) {
  auto frame = context.workspace.frame();
  const Matrix<const T, Exec> all = whole_rows<T>(context, h);
  for_slices<Exec, T>(context, w, all, [&](int begin, int end, const Matrix<T, Exec>& logits) {
    slice_loss<Exec, T>(context, part(targets, begin, end), 0, false, logits, part(token_loss, begin, end));
  });
}

template <class Exec, class T>
void head_loss_backward(Context<Exec>& context, const Weights<Exec, T>& w, Matrix<T, Exec> h,
                        Vector<const std::int32_t, Exec> targets, Acc<T> gradient_scale, bool accumulate,
                        Vector<Acc<T>, Exec> token_loss, Matrix<T, Exec> dh, const Gradients<Exec, T>& g) {
  auto frame = context.workspace.frame();
  const Matrix<const T, Exec> all = whole_rows<T>(context, h);
  sum_rows<T>(context, dh, [&](const Matrix<T, Exec>& partial) {
    for_slices<Exec, T>(context, w, all, [&](int begin, int end, const Matrix<T, Exec>& logits) {
      slice_loss<Exec, T>(context, part(targets, begin, end), gradient_scale, true, logits,
                          part(token_loss, begin, end));
      context.gemm.template operator()<T, T>(Op::none, Op::none, 1, logits, w.head, 0, row_range(partial, begin, end));
      context.gemm.template operator()<T, Acc<T>>(Op::transpose, Op::none, 1, logits, row_range(all, begin, end),
                                                  accumulate || begin > 0 ? 1 : 0, g.head);
      if (g.head_bias.size() > 0) bias_backward<Exec, T>(context.exec, logits, g.head_bias, context.workspace);
    });
  });
}

#define SESTINA_HEAD(Exec, T)                                                                                     \
  template void head_loss<Exec, T>(Context<Exec>&, const Weights<Exec, T>&, Matrix<T, Exec>,                      \
                                   Vector<const std::int32_t, Exec>, Vector<Acc<T>, Exec>);                       \
  template void head_loss_backward<Exec, T>(Context<Exec>&, const Weights<Exec, T>&, Matrix<T, Exec>,             \
                                            Vector<const std::int32_t, Exec>, Acc<T>, bool, Vector<Acc<T>, Exec>, \
                                            Matrix<T, Exec>, const Gradients<Exec, T>&);                          \
  template void finish_logits<Exec, T>(Context<Exec>&, const Weights<Exec, T>&, Matrix<T, Exec>);
SESTINA_INSTANTIATE(SESTINA_HEAD)

static_assert(Workspace<Host>::alignment == scratch_alignment);

template <class Exec, class T>
Transformer<Exec, T>::Transformer(const Exec& exec, const ModelConfig& config, LayerRange range, int micro_batch,
                                  int sequence, bool recompute, bool deterministic)
    : Transformer(exec, model_part(config, 1, 0), range, micro_batch, sequence, recompute, deterministic) {}

template <class Exec, class T>
Transformer<Exec, T>::Transformer(const Exec& exec, const ModelPart& part, LayerRange range, int micro_batch,
                                  int sequence, bool recompute, bool deterministic, GroupOps<Exec>* group)
    : range_(range),
      recompute_(recompute),
      specs_(tensor_specs(part.config, range)),
      gemm_(exec, deterministic),
      context_{exec, part, micro_batch, sequence, gemm_, workspace_, group ? *group : alone_, {}, {}} {
  const ModelConfig& config = part.config;
  SESTINA_REQUIRE(context_.group.size() == part.tp && context_.group.rank() == part.tp_rank,
                  "rank {} of {} with part {} of {}", context_.group.rank(), context_.group.size(), part.tp_rank,
                  part.tp);
  SESTINA_REQUIRE(micro_batch > 0 && sequence > 0 && range.begin < range.end, "{} sequences of {}, layers {} to {}",
                  micro_batch, sequence, range.begin, range.end);
  const bool learned = config.position == ModelConfig::Position::learned;
  SESTINA_REQUIRE(!learned || sequence <= config.max_position_embeddings, "sequences of {}, {} learned positions",
                  sequence, config.max_position_embeddings);
  if (!learned) make_rope_tables(exec);
  int threads = 0;
  if constexpr (std::is_same_v<Exec, Host>) threads = threads_of(exec);
  workspace_ =
      Workspace<Exec>(sestina::workspace_bytes(part, micro_batch, sequence, {sizeof(T), sizeof(Acc<T>)}, threads));
}

template <class Exec, class T>
void Transformer<Exec, T>::make_rope_tables(const Exec& exec) {
  const RopeTable table = rope_table(config(), context_.sequence);
  const auto rows = static_cast<std::size_t>(context_.sequence), half = static_cast<std::size_t>(config().head_dim / 2);
  using HostTable =
      Kokkos::View<const float**, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  cosine_ = Table("sestina::cosine", rows, half);
  sine_ = Table("sestina::sine", rows, half);
  Kokkos::deep_copy(exec, cosine_, HostTable(table.cosine.data(), rows, half));
  Kokkos::deep_copy(exec, sine_, HostTable(table.sine.data(), rows, half));
  exec.fence("rope tables");  // the host copies end here
  context_.cosine = cosine_;
  context_.sine = sine_;
}

template <class Exec, class T>
Activations<Exec, T> Transformer<Exec, T>::make_slot() const {
  return Activations<Exec, T>(part(), range_, context_.batch, context_.sequence, recompute_);
}

template <class Exec, class T>
void Transformer<Exec, T>::forward(const Weights<Exec, T>& w, Activations<Exec, T>& slot, const TokenRows<Exec>& tokens,
                                   Vector<const std::int32_t, Exec> first_key, BlockHooks& hooks) {
  auto frame = workspace_.frame();
  const Matrix<T, Exec> branch = take_own_rows<T>(context_);
  slot.tokens = tokens;
  slot.first_key = first_key;
  if (first_stage()) {
    hooks.before_forward(0);
    embedding_forward(w, slot);
    hooks.after_forward(0);
  }
  Matrix<const T, Exec> stream, pending;
  for (std::size_t i = 0; i < slot.layers.size(); ++i) {
    hooks.before_forward(1 + range_.begin + static_cast<int>(i));
    block_forward<Exec, T>(context_, w.layers[i], slot.layers[i], first_key, stream, pending, branch);
    hooks.after_forward(1 + range_.begin + static_cast<int>(i));
    stream = slot.layers[i].x2;
    pending = branch;
  }
  if (last_stage()) {
    hooks.before_forward(last_block());
    norm_forward<Exec, T>(context_, w.norm, stream, pending, slot.output, slot.h, slot.norm);
  } else {
    add<Exec, T>(context_.exec, stream, pending, slot.output);
  }
  hooks.after_forward(1 + range_.end);
}

template <class Exec, class T>
void Transformer<Exec, T>::loss_only(const Weights<Exec, T>& w, Activations<Exec, T>& slot,
                                     Vector<const std::int32_t, Exec> targets) {
  head_loss<Exec, T>(context_, w, slot.h, targets, slot.token_loss);
}

template <class Exec, class T>
void Transformer<Exec, T>::loss_and_backward(const Weights<Exec, T>& w, Activations<Exec, T>& slot,
                                             Vector<const std::int32_t, Exec> targets, double gradient_scale,
                                             bool accumulate, const Gradients<Exec, T>& g, BlockHooks& hooks) {
  slot.gradient_scale = gradient_scale;
  head_backward(w, slot, targets, gradient_scale, accumulate, g, hooks);
  backward(w, slot, accumulate, g, hooks);
}

// Computes losses, and the gradient of the stream after the last layer in slot.gradient.
template <class Exec, class T>
void Transformer<Exec, T>::head_backward(const Weights<Exec, T>& w, Activations<Exec, T>& slot,
                                         Vector<const std::int32_t, Exec> targets, double gradient_scale,
                                         bool accumulate, const Gradients<Exec, T>& g, BlockHooks& hooks) {
  hooks.before_backward(last_block());
  const bool handed_on = config().tie_word_embeddings && !first_stage();  // each micro-batch's gradient goes by itself
  start_sum(context_.exec, g.head_bias, accumulate);
  head_loss_backward<Exec, T>(context_, w, slot.h, targets, static_cast<Acc<T>>(gradient_scale),
                              accumulate && !handed_on, slot.token_loss, slot.gradient, g);
  norm_backward<Exec, T>(context_, w.norm, slot.gradient, slot.output, slot.norm, {}, slot.gradient, accumulate,
                         g.norm);
  hooks.after_backward(last_block());
}

template <class Exec, class T>
void Transformer<Exec, T>::backward(const Weights<Exec, T>& w, Activations<Exec, T>& slot, bool accumulate,
                                    const Gradients<Exec, T>& g, BlockHooks& hooks) {
  context_.gradient_scale = slot.gradient_scale;
  for (std::size_t i = slot.layers.size(); i-- > 0;) {
    const int block = 1 + range_.begin + static_cast<int>(i);
    hooks.before_backward(block);
    if (recompute_) block_recompute<Exec, T>(context_, w.layers[i], slot.layers[i], slot.first_key);
    block_backward<Exec, T>(context_, w.layers[i], slot.layers[i], slot.first_key, slot.gradient, accumulate,
                            g.layers[i]);
    hooks.after_backward(block);
  }
  if (!first_stage()) return;
  hooks.before_backward(0);
  embedding_backward(w, slot, accumulate, g);
  hooks.after_backward(0);
}

template <class Exec, class T>
void Transformer<Exec, T>::backward_input(const Weights<Exec, T>& w, Activations<Exec, T>& slot,
                                          Vector<const std::int32_t, Exec> targets, double gradient_scale,
                                          bool accumulate, const Gradients<Exec, T>& g, BlockHooks& hooks) {
  context_.gradient_scale = gradient_scale;
  if (last_stage()) head_backward(w, slot, targets, gradient_scale, accumulate, g, hooks);
  for (std::size_t i = slot.layers.size(); i-- > 0;) {
    hooks.before_backward(1 + range_.begin + static_cast<int>(i));
    block_backward_input<Exec, T>(context_, w.layers[i], slot.layers[i], slot.first_key, slot.gradient, accumulate,
                                  g.layers[i], slot.kept[i]);
    hooks.after_backward_input(1 + range_.begin + static_cast<int>(i));
  }
}

template <class Exec, class T>
void Transformer<Exec, T>::backward_weight(const Weights<Exec, T>& w, Activations<Exec, T>& slot, bool accumulate,
                                           const Gradients<Exec, T>& g, BlockHooks& hooks) {
  for (std::size_t i = slot.layers.size(); i-- > 0;) {
    block_backward_weight<Exec, T>(context_, w.layers[i], slot.layers[i], slot.kept[i], accumulate, g.layers[i]);
    hooks.after_backward(1 + range_.begin + static_cast<int>(i));
  }
  if (!first_stage()) return;
  embedding_backward(w, slot, accumulate, g);
  hooks.after_backward(0);
}

// Embeds the tokens: each rank adds the rows of its own part of the vocabulary, the first one the positions too.
template <class Exec, class T>
void Transformer<Exec, T>::embedding_forward(const Weights<Exec, T>& w, Activations<Exec, T>& slot) {
  const auto position = part().tp_rank == 0 ? w.position : Matrix<const T, Exec>();
  const bool normed = config().embedding_norm;
  sum_rows<T>(context_, normed ? slot.embedded : slot.layers[0].x, [&](const Matrix<T, Exec>& rows) {
    embed<Exec, T>(context_.exec, slot.tokens.token, w.embedding, position, context_.sequence, rows,
                   static_cast<std::int32_t>(part().vocabulary_begin));
  });
  if (normed)
    norm_forward<Exec, T>(context_, w.embedding_norm, slot.embedded, {}, {}, slot.layers[0].x, slot.embedding_norm);
}

template <class Exec, class T>
void Transformer<Exec, T>::embedding_backward(const Weights<Exec, T>& w, Activations<Exec, T>& slot, bool accumulate,
                                              const Gradients<Exec, T>& g) {
  if (config().embedding_norm)
    norm_backward<Exec, T>(context_, w.embedding_norm, slot.gradient, slot.embedded, slot.embedding_norm, {},
                           slot.gradient, accumulate, g.embedding_norm);
  const bool begun_by_head = config().tie_word_embeddings;
  start_sum(context_.exec, g.embedding, accumulate || begun_by_head);
  start_sum(context_.exec, g.position, accumulate);
  auto frame = workspace_.frame();
  embed_backward<Exec, T>(context_.exec, slot.tokens, whole_rows<T>(context_, slot.gradient), context_.sequence,
                          g.embedding, g.position, static_cast<std::int32_t>(part().vocabulary_begin));
}

template <class Exec, class T>
void Transformer<Exec, T>::finish_gradients(const Weights<Exec, T>& w, int block, const Gradients<Exec, T>& g) {
  const int i = block - 1 - range_.begin;
  if (config().linear.is_dense() || i < 0 || i >= range_.end - range_.begin) return;
  const auto& form = linear_form<Exec, T>(config().linear);
  const auto finish = [&](const auto& weights, const auto& gradients) {
    for (std::size_t k = 0; k < gradients.formed.size(); ++k)
      if (gradients.formed[k].sums != nullptr) form.finish_gradient(context_, weights.formed[k], gradients.formed[k]);
  };
  const auto& weights = w.layers[static_cast<std::size_t>(i)];
  const auto& gradients = g.layers[static_cast<std::size_t>(i)];
  finish(weights.qkv, gradients.qkv);
  finish(weights.o, gradients.o);
  finish(weights.up, gradients.up);
  finish(weights.down, gradients.down);
}

template <class Exec, class T>
void Transformer<Exec, T>::merge(const FormedWeight& w, std::uint64_t seed, std::int64_t number) {
  linear_form<Exec, T>(config().linear).merge(context_, w, seed, number);
}

template <class Exec, class T>
void Transformer<Exec, T>::assign(const FormedWeight& w, std::uint64_t seed, Matrix<const Acc<T>, Exec> dense) {
  linear_form<Exec, T>(config().linear).assign(context_, w, seed, dense);
}

template <class Exec, class T>
void Transformer<Exec, T>::effective(const FormedWeight& w, Matrix<Acc<T>, Exec> dense) {
  linear_form<Exec, T>(config().linear).effective(context_, w, dense);
}

template <class Exec, class T>
double Transformer<Exec, T>::largest_rotation(const FormedWeight& w, Workspace<Exec>& workspace) {
  return linear_form<Exec, T>(config().linear).largest_rotation(context_, w, workspace);
}

template <class Exec, class T>
RotationMeasure Transformer<Exec, T>::measure(const FormedWeight& w, Workspace<Exec>& workspace, Solver<Exec>& solver) {
  return linear_form<Exec, T>(config().linear).measure(context_, w, workspace, solver);
}

template <class Exec, class T>
double Transformer<Exec, T>::loss_sum(const Activations<Exec, T>& slot) {
  return sum<Exec, Acc<T>>(context_.exec, slot.token_loss, workspace_);
}

template <class Exec, class T>
void Transformer<Exec, T>::loss_sum(const Activations<Exec, T>& slot, Vector<double, Exec> result) {
  sum_to<Exec, Acc<T>>(context_.exec, slot.token_loss, workspace_, result);
}

template <class Exec, class T>
void Transformer<Exec, T>::logits(const Weights<Exec, T>& w, const Activations<Exec, T>& slot, int begin,
                                  Matrix<T, Exec> out) {
  auto frame = workspace_.frame();
  const Matrix<const T, Exec> h = whole_rows<T>(context_, slot.h);
  gemm_.template operator()<T, T>(Op::none, Op::transpose, 1,
                                  row_range(h, begin, begin + static_cast<int>(out.extent(0))), w.head, 0, out);
  finish_logits<Exec, T>(context_, w, out);
}

#define SESTINA_TRANSFORMER(Exec, T) template class Transformer<Exec, T>;
SESTINA_INSTANTIATE(SESTINA_TRANSFORMER)

}  // namespace sestina
