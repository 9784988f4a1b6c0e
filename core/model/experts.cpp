#include "core/model/experts.hpp"

#include <algorithm>

#include "core/model/linear.hpp"
#include "kernels/model/activation.hpp"
#include "kernels/model/expert_rows.hpp"
#include "kernels/model/router.hpp"
#include "kernels/model/token_sort.hpp"

namespace sestina {
namespace {

template <class Exec>
RouterRule router_rule(const Context<Exec>& context) {
  const ModelConfig& c = context.config();
  const double share = context.gradient_scale / static_cast<double>(c.num_hidden_layers);
  return {c.norm_topk_prob, c.router_score == ModelConfig::RouterScore::sigmoid, c.router_aux_loss_coef * share,
          c.router_z_loss_coef * share};
}

// Returns the activations with the rows of this pass: a decoder runs fewer than there is room for.
template <class Exec, class T>
LayerActivations<Exec, T> rows_of_pass(const Context<Exec>& context, LayerActivations<Exec, T> a) {
  const std::int64_t n = context.rows();
  const auto choices = static_cast<std::size_t>(n * context.config().num_experts_per_tok);
  for (Matrix<Acc<T>, Exec>* m : {&a.router, &a.choice_weights}) *m = row_range(*m, 0, n);
  for (Matrix<std::int32_t, Exec>* m : {&a.chosen, &a.place}) *m = row_range(*m, 0, n);
  a.log_sums = Vector<Acc<T>, Exec>(a.log_sums.data(), static_cast<std::size_t>(n));
  a.token = Vector<std::int32_t, Exec>(a.token.data(), choices);
  return a;
}

// Brings the counts to the host.
template <class Exec, class T>
void fetch_counts(Context<Exec>& context, const LayerActivations<Exec, T>& a) {
  ExpertRows& rows = *a.rows;
  context.group.complete();
  bring_counts(context.exec, a);
  if (context.experts)
    context.experts->exchange_counts(rows);
  else
    rows.received = rows.sent;
  for (std::size_t e = 0; e < a.load.size(); ++e) a.load(e) += rows.sent[e];
}

// The rows of the experts that are here, which lie one expert after the other.
template <class Exec>
class RowsInTurn {
 public:
  RowsInTurn(const Context<Exec>& context, const ExpertRows& rows)
      : rows_(rows), sources_(static_cast<std::size_t>(context.experts ? context.experts->size() : 1)) {}
  // Moves to the rows of the next expert.
  void next() {
    begin_ = end_;
    for (std::size_t source = 0; source < sources_; ++source) end_ += rows_.received[at_++];
  }
  template <class View>
  View of(const View& all) const {
    return row_range(all, begin_, end_);
  }

 private:
  const ExpertRows& rows_;
  std::size_t sources_, at_ = 0;
  std::int64_t begin_ = 0, end_ = 0;
};

// Which of the two layers of an expert is meant, and the same of its gradients.
template <class Views>
using ExpertLayer = typename Views::Linear Views::Layer::Expert::*;

// Computes y = x op(W) of each expert's rows, all in one group of products (dense, without biases, as experts are).
template <class Exec, class T>
void products_of_experts(Context<Exec>& context, const ExpertRows& all, const typename Weights<Exec, T>::Layer& w,
                         ExpertLayer<Weights<Exec, T>> layer, Op op, const Matrix<const T, Exec>& x,
                         const Matrix<T, Exec>& y) {
  RowsInTurn<Exec> rows(context, all);
  context.gemm.template grouped<T, T>(w.experts.size(), Op::none, op, 1, 0, [&](std::size_t i) {
    rows.next();
    return GroupOperands<T, T, Exec>{rows.of(x), (w.experts[i].*layer).weight, rows.of(y)};
  });
}

// Computes y = x W^T; a decoder's few rows go expert by expert.
template <class Exec, class T>
void forward_of_experts(Context<Exec>& context, const ExpertRows& all, const typename Weights<Exec, T>::Layer& w,
                        ExpertLayer<Weights<Exec, T>> layer, const Matrix<const T, Exec>& x, const Matrix<T, Exec>& y) {
  if (!std::is_same_v<Exec, Host> || !context.thin)
    return products_of_experts<Exec, T>(context, all, w, layer, Op::transpose, x, y);
  RowsInTurn<Exec> rows(context, all);
  for (const auto& expert : w.experts) {
    rows.next();
    if (rows.of(x).extent(0) > 0) forward_product<Exec, T>(context, (expert.*layer).weight, rows.of(x), rows.of(y));
  }
}

// Sets, or adds to, the gradients dy^T x of each expert's weights, all in one group; gate and up may lie apart.
template <class Exec, class T>
void backward_weight_of_experts(Context<Exec>& context, const ExpertRows& all,
                                const typename Gradients<Exec, T>::Layer& g, ExpertLayer<Gradients<Exec, T>> layer,
                                const Matrix<const T, Exec>& dy, const Matrix<const T, Exec>& x, bool accumulate) {
  using A = Acc<T>;
  const auto parts_of = [&](std::size_t expert) { return std::max(1, (g.experts[expert].*layer).parts); };
  std::size_t products = 0;
  for (std::size_t expert = 0; expert < g.experts.size(); ++expert)
    products += static_cast<std::size_t>(parts_of(expert));
  RowsInTurn<Exec> rows(context, all);
  std::size_t expert = 0;
  int part = 0;
  std::int64_t column = 0;
  const auto next = [&](std::size_t) {
    if (part == 0) {
      rows.next();
      column = 0;
    }
    const auto& own = g.experts[expert].*layer;
    const Matrix<A, Exec>& to = own.parts == 0 ? own.weight : own.part[static_cast<std::size_t>(part)];
    const std::int64_t begin = column;
    column += static_cast<std::int64_t>(to.extent(0));
    if (++part == parts_of(expert)) {
      part = 0;
      ++expert;
    }
    return GroupOperands<T, A, Exec>{columns(rows.of(dy), begin, column), rows.of(x), to};
  };
  context.gemm.template grouped<T, A>(products, Op::transpose, Op::none, 1, accumulate ? 1 : 0, next);
}

// Returns rows (R, width) of this rank's tokens as rows (R', width) of its experts: themselves where all are here, else
// in `to`, where they are after arrive().
template <class Exec, class T>
Matrix<T, Exec> send(Context<Exec>& context, const ExpertRows& rows, const Matrix<T, Exec>& from,
                     const Matrix<T, Exec>& to) {
  if (context.experts == nullptr) return from;
  context.experts->send(context.exec, rows, Matrix<const T, Exec>(from), to);
  return to;
}
// Does the shared expert's work, before rows that other ranks sent are needed.
template <class Exec>
void arrive(Context<Exec>& context, const SharedWork& work) {
  if (context.experts != nullptr)
    context.experts->finish(context.exec, work);
  else if (work)
    work();
}
// Returns rows of experts as rows of tokens, in the same way.
template <class Exec, class T>
Matrix<T, Exec> send_back(Context<Exec>& context, const ExpertRows& rows, const Matrix<T, Exec>& from,
                          const Matrix<T, Exec>& to) {
  if (context.experts == nullptr) return from;
  context.experts->send_back(context.exec, rows, Matrix<const T, Exec>(from), to);
  return to;
}

// Takes scratch for rows of this rank's tokens, or of its experts; the second is empty where both are the same.
template <class T, class Exec, class S>
Matrix<T, Exec> take_sorted(Context<Exec>& context, const LayerActivations<Exec, S>& a, std::size_t width) {
  return context.workspace.template take<T>(a.token.size(), width);
}
template <class T, class Exec, class S>
Matrix<T, Exec> take_here(Context<Exec>& context, const LayerActivations<Exec, S>& a, std::size_t width) {
  if (context.experts == nullptr) return {};
  return context.workspace.template take<T>(static_cast<std::size_t>(a.rows->here()), width);
}

// Sets rows of x (N, D) off and returns them as they come to the experts (R', D), in scratch of the caller's frame.
template <class Exec, class T>
Matrix<T, Exec> tokens_to_experts(Context<Exec>& context, const LayerActivations<Exec, T>& a,
                                  const Matrix<const T, Exec>& x) {
  const Matrix<T, Exec> sorted = take_sorted<T>(context, a, x.extent(1));
  gather_tokens<Exec, T>(context.exec, x, a.token, sorted);
  return send<Exec, T>(context, *a.rows, sorted, take_here<T>(context, a, x.extent(1)));
}

}  // namespace

template <class Exec, class T>
void experts_forward_up(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w, Matrix<const T, Exec> x,
                        LayerActivations<Exec, T>& all, const SharedWork& shared) {
  const LayerActivations<Exec, T> a = rows_of_pass<Exec, T>(context, all);
  const Exec& exec = context.exec;
  if constexpr (std::is_same_v<T, Acc<T>>)
    forward_product<Exec, T>(context, w.router.weight, x, a.router);
  else
    context.gemm.template operator()<T, Acc<T>>(Op::none, Op::transpose, 1, x, w.router.weight, 0, a.router);
  choose_experts<Exec, Acc<T>>(exec, router_rule(context), w.choice_bias, a.router, a.chosen, a.choice_weights,
                               a.log_sums);
  sort_tokens<Exec>(exec, a.chosen, a.place, a.token, a.counts, context.workspace);
  fetch_counts(context, a);
  auto frame = context.workspace.frame();
  const Matrix<T, Exec> rows = tokens_to_experts<Exec, T>(context, a, x);
  arrive(context, shared);
  forward_of_experts<Exec, T>(context, *a.rows, w, &Weights<Exec, T>::Layer::Expert::up, rows, a.expert_up);
}

template <class Exec, class T>
void experts_forward_down(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                          const LayerActivations<Exec, T>& all, const SharedWork& shared, Matrix<T, Exec> branch) {
  const LayerActivations<Exec, T> a = rows_of_pass<Exec, T>(context, all);
  auto frame = context.workspace.frame();
  const auto here = static_cast<std::size_t>(a.rows->here());
  const Matrix<T, Exec> inner = context.workspace.template take<T>(here, a.expert_up.extent(1) / 2);
  const Matrix<T, Exec> out = context.workspace.template take<T>(here, branch.extent(1));
  swiglu<Exec, T>(context.exec, row_range(a.expert_up, 0, a.rows->here()), inner);
  forward_of_experts<Exec, T>(context, *a.rows, w, &Weights<Exec, T>::Layer::Expert::down, inner, out);
  const Matrix<T, Exec> back = context.experts ? take_sorted<T>(context, a, branch.extent(1)) : Matrix<T, Exec>();
  const Matrix<T, Exec> rows = send_back<Exec, T>(context, *a.rows, out, back);
  arrive(context, shared);
  combine_rows<Exec, T>(context.exec, rows, a.place, a.choice_weights, static_cast<bool>(shared), branch);
}

namespace {

// Computes d.rows and d.inner, the gradient of expert_up in its place, and returns the gradients of the choices'
// weights (R, 1), in scratch of the caller's frame; they are on their way and there after arrive().
template <class Exec, class T>
Matrix<Acc<T>, Exec> backward_to_expert_up(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                                           const LayerActivations<Exec, T>& a, Matrix<const T, Exec> d_out,
                                           const SharedWork& shared, const ExpertGradients<Exec, T>& d) {
  using A = Acc<T>;
  const Matrix<A, Exec> sorted = take_sorted<A>(context, a, 1);
  sort_choices<Exec, A>(context.exec, a.choice_weights, a.place, Vector<A, Exec>(sorted.data(), sorted.size()));
  const Matrix<A, Exec> weight = send<Exec, A>(context, *a.rows, sorted, take_here<A>(context, a, 1));
  {
    auto frame = context.workspace.frame();
    const Matrix<T, Exec> rows = context.experts ? take_sorted<T>(context, a, d_out.extent(1)) : d.rows;
    gather_tokens<Exec, T>(context.exec, d_out, a.token, rows);
    send<Exec, T>(context, *a.rows, rows, d.rows);
    arrive(context, shared);
  }
  products_of_experts<Exec, T>(context, *a.rows, w, &Weights<Exec, T>::Layer::Expert::down, Op::none, d.rows, d.inner);
  weighted_swiglu_backward<Exec, T>(context.exec, d.inner, row_range(a.expert_up, 0, a.rows->here()),
                                    Vector<A, Exec>(weight.data(), weight.size()));
  return send_back<Exec, A>(context, *a.rows, weight, sorted);
}

// Sets d_in (N, D) to the router's part of the gradient of its input, or adds it: on each tensor-parallel rank that of
// some of the experts. Returns whether there is anything in d_in now: ranks may be more than experts.
template <class Exec, class T>
bool router_backward_input(Context<Exec>& context, const Matrix<const T, Exec>& weight,
                           const Matrix<const T, Exec>& d_router, bool add, const Matrix<T, Exec>& d_in) {
  const auto experts = static_cast<std::int64_t>(weight.extent(0));
  const int ranks = context.part.tp, rank = context.part.tp_rank;
  const std::int64_t begin = first_row_of(experts, ranks, rank), end = first_row_of(experts, ranks, rank + 1);
  if (begin < end)
    context.gemm.template operator()<T, T>(Op::none, Op::none, 1, columns(d_router, begin, end),
                                           row_range(weight, begin, end), add ? 1 : 0, d_in);
  return add || begin < end;
}

}  // namespace

template <class Exec, class T>
void experts_backward_input(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                            const LayerActivations<Exec, T>& all, Matrix<const T, Exec> d_out,
                            const SharedBackward& shared, Matrix<T, Exec> d_in, const ExpertGradients<Exec, T>& d) {
  const LayerActivations<Exec, T> a = rows_of_pass<Exec, T>(context, all);
  auto frame = context.workspace.frame();
  const Matrix<Acc<T>, Exec> d_weight = backward_to_expert_up<Exec, T>(context, w, a, d_out, shared.to_up, d);
  const Matrix<T, Exec> rows = context.workspace.template take<T>(d.rows.extent(0), d_in.extent(1));
  products_of_experts<Exec, T>(context, *a.rows, w, &Weights<Exec, T>::Layer::Expert::up, Op::none, a.expert_up, rows);
  const Matrix<T, Exec> back = context.experts ? take_sorted<T>(context, a, d_in.extent(1)) : Matrix<T, Exec>();
  const Matrix<T, Exec> of_tokens = send_back<Exec, T>(context, *a.rows, rows, back);
  arrive(context, shared.to_input);
  const Vector<Acc<T>, Exec> weights(d_weight.data(), d_weight.size());
  context.group.sum(context.exec, weights);
  choose_experts_backward<Exec, T>(context.exec, router_rule(context),
                                   {a.router, a.choice_weights, a.log_sums, a.chosen, a.place, a.counts}, weights,
                                   d.router);
  const bool adds =
      router_backward_input<Exec, T>(context, w.router.weight, d.router, static_cast<bool>(shared.to_input), d_in);
  combine_rows<Exec, T>(context.exec, of_tokens, a.place, {}, adds, d_in);
}

template <class Exec, class T>
void experts_backward_weight(Context<Exec>& context, const typename Weights<Exec, T>::Layer& w,
                             const LayerActivations<Exec, T>& all, Matrix<const T, Exec> x,
                             const ExpertGradients<Exec, T>& d, bool accumulate,
                             const typename Gradients<Exec, T>::Layer& g, const SharedWork& shared) {
  const LayerActivations<Exec, T> a = rows_of_pass<Exec, T>(context, all);
  auto frame = context.workspace.frame();
  const Matrix<T, Exec> rows = tokens_to_experts<Exec, T>(context, a, x);
  const auto while_they_travel = [&] {
    linear_backward_weight<Exec, T>(context, w.router, d.router, x, accumulate, g.router);
    if (shared) shared();
  };
  arrive(context, std::ref(while_they_travel));
  using Expert = typename Gradients<Exec, T>::Layer::Expert;
  backward_weight_of_experts<Exec, T>(context, *a.rows, g, &Expert::down, d.rows, d.inner, accumulate);
  backward_weight_of_experts<Exec, T>(context, *a.rows, g, &Expert::up, a.expert_up, rows, accumulate);
}

#define SESTINA_EXPERTS(Exec, T)                                                                                     \
  template void experts_forward_up<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,                 \
                                            Matrix<const T, Exec>, LayerActivations<Exec, T>&, const SharedWork&);   \
  template void experts_forward_down<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,               \
                                              const LayerActivations<Exec, T>&, const SharedWork&, Matrix<T, Exec>); \
  template void experts_backward_input<Exec, T>(                                                                     \
      Context<Exec>&, const typename Weights<Exec, T>::Layer&, const LayerActivations<Exec, T>&,                     \
      Matrix<const T, Exec>, const SharedBackward&, Matrix<T, Exec>, const ExpertGradients<Exec, T>&);               \
  template void experts_backward_weight<Exec, T>(Context<Exec>&, const typename Weights<Exec, T>::Layer&,            \
                                                 const LayerActivations<Exec, T>&, Matrix<const T, Exec>,            \
                                                 const ExpertGradients<Exec, T>&, bool,                              \
                                                 const typename Gradients<Exec, T>::Layer&, const SharedWork&);
SESTINA_INSTANTIATE(SESTINA_EXPERTS)

}  // namespace sestina
