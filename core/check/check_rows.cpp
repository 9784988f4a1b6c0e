// Kernels that pass over rows once: activation, rotary positions, loss, embedding and copies, compared with their
// formulas.
#include <fmt/format.h>

#include "core/check/checker.hpp"
#include "core/layout/model_size.hpp"
#include "core/model/rope_table.hpp"
#include "kernels/blas/row_copies.hpp"
#include "kernels/model/activation.hpp"
#include "kernels/model/loss.hpp"

namespace sestina {
namespace {

// An activation of one element and its slope.
struct Activated {
  double value, slope;
};
Activated silu(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return {x * s, s * (1 + x * (1 - s))};
}
Activated exact_gelu(double x) {
  const double below = 0.5 * std::erfc(-x * 0x1.6a09e667f3bcdp-1),
               density = 0x1.9884533d43651p-2 * std::exp(-x * x / 2);
  return {x * below, below + x * density};
}
Activated tanh_gelu(double x) {
  constexpr double c = 0x1.9884533d43651p-1, cubic = 0.044715;  // c = (2 / pi)^(1/2)
  const double t = std::tanh(c * (x + cubic * x * x * x));
  return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * cubic * x * x)};
}
Activated squared_relu(double x) { return {x > 0 ? x * x : 0, x > 0 ? 2 * x : 0}; }

// One element is a handful of operations in the accumulator's type, and one rounding as T.
template <class T>
constexpr double element_bound = 2 * spacing<T> + 16 * spacing<Acc<T>>;

template <class Exec, class T>
void check_swiglu(const CheckContext<Exec>& context, std::size_t F) {
  Checker<Exec>& checker = context.checker;
  const std::size_t N = context.rows();
  auto gate_up = checker.template numbers<T>(N, 2 * F), dy = checker.template numbers<T>(N, F);
  auto y = checker.template blank<T>(N, F), again = checker.template blank<T>(N, F),
       dgate_up = checker.template blank<T>(N, 2 * F);
  std::vector<double> ys(N * F), gradients(N * 2 * F);
  for (std::size_t i = 0; i < N; ++i)
    for (std::size_t j = 0; j < F; ++j) {
      const double up = gate_up.start(i, F + j), d = dy.start(i, j);
      const Activated gate = silu(gate_up.start(i, j));
      ys[i * F + j] = gate.value * up;
      gradients[i * 2 * F + j] = d * up * gate.slope;
      gradients[i * 2 * F + F + j] = d * gate.value;
    }
  const std::string shape = fmt::format("{} x {}", N, F);
  const double bytes = static_cast<double>(N * F) * sizeof(T);
  checker.check({"SwiGLU: forward", shape, 0, 3 * bytes}, {expected("y", y, element_bound<T>, ys)},
                [&] { swiglu<Exec, T>(checker.exec(), gate_up.matrix(), y.matrix()); });
  checker.check(
      {"SwiGLU: backward", shape, 0, 6 * bytes},
      {expected("dgate_up", dgate_up, element_bound<T>, gradients), expected("y", again, element_bound<T>, ys)}, [&] {
        swiglu_backward<Exec, T>(checker.exec(), dy.matrix(), gate_up.matrix(), dgate_up.matrix(), again.matrix());
      });
}

template <class Exec, class T>
void check_activation(const CheckContext<Exec>& context, std::size_t F) {
  Checker<Exec>& checker = context.checker;
  const std::string& act = context.model().hidden_act;
  const GeluForm form = act == "gelu" ? GeluForm::exact : GeluForm::tanh;
  const std::size_t N = context.rows();
  auto x = checker.template numbers<T>(N, F), dy = checker.template numbers<T>(N, F);
  auto y = checker.template blank<T>(N, F), again = checker.template blank<T>(N, F),
       dx = checker.template blank<T>(N, F);
  std::vector<double> ys(N * F), gradients(N * F);
  for (std::size_t i = 0; i < N * F; ++i) {
    const Activated a = act == "relu2"  ? squared_relu(x.start(i))
                        : act == "gelu" ? exact_gelu(x.start(i))
                                        : tanh_gelu(x.start(i));
    ys[i] = a.value;
    gradients[i] = dy.start(i) * a.slope;
  }
  const std::string shape = fmt::format("{} x {}", N, F);
  const double bytes = static_cast<double>(N * F) * sizeof(T);
  checker.check({act + ": forward", shape, 0, 2 * bytes}, {expected("y", y, element_bound<T>, ys)}, [&] {
    if (act == "relu2")
      relu_squared<Exec, T>(checker.exec(), x.matrix(), y.matrix());
    else
      gelu<Exec, T>(checker.exec(), form, x.matrix(), y.matrix());
  });
  checker.check({act + ": backward", shape, 0, 4 * bytes},
                {expected("dx", dx, element_bound<T>, gradients), expected("y", again, element_bound<T>, ys)}, [&] {
                  if (act == "relu2")
                    relu_squared_backward<Exec, T>(checker.exec(), dy.matrix(), x.matrix(), dx.matrix(),
                                                   again.matrix());
                  else
                    gelu_backward<Exec, T>(checker.exec(), form, dy.matrix(), x.matrix(), dx.matrix(), again.matrix());
                });
}

template <class Exec, class T>
void check_rope(const CheckContext<Exec>& context) {
  Checker<Exec>& checker = context.checker;
  const std::size_t half = extent(context.model().head_dim / 2), heads = extent(context.model().num_attention_heads),
                    N = context.rows(), length = extent(context.sequence);
  const RopeTable table = rope_table(context.model(), context.sequence);
  CheckField<Exec, float> cosine(length, half), sine(length, half);
  cosine.fill([&](std::size_t i) { return table.cosine[i]; });
  sine.fill([&](std::size_t i) { return table.sine[i]; });
  auto x = checker.template numbers<T>(N, heads * 2 * half);
  std::vector<double> turned(x.size());
  for (std::size_t r = 0; r < N; ++r)
    for (std::size_t pair = 0; pair < heads * half; ++pair) {
      const std::size_t first = r * x.cols() + pair / half * 2 * half + pair % half, second = first + half;
      const double c = cosine.start(r % length, pair % half), s = sine.start(r % length, pair % half);
      turned[first] = c * x.start(first) - s * x.start(second);
      turned[second] = c * x.start(second) + s * x.start(first);
    }
  checker.check({"rotary", fmt::format("{} x {}", N, x.cols()), 0, 2.0 * static_cast<double>(x.size()) * sizeof(T)},
                {expected("x", x, element_bound<T>, std::move(turned))}, [&] {
                  rope<Exec, T>(checker.exec(), cosine.matrix(), sine.matrix(), context.sequence, 1, x.matrix());
                });
}

// Tokens of rows; every 17th counts as none where `holes`.
template <class Exec>
CheckField<Exec, std::int32_t> tokens(std::size_t n, std::size_t V, bool holes) {
  CheckField<Exec, std::int32_t> field(1, n);
  field.fill(
      [&](std::size_t i) { return holes && i % 17 == 3 ? -1 : static_cast<std::int32_t>(split_mix(11, i) % V); });
  return field;
}

template <class Exec, class T>
void check_loss(const CheckContext<Exec>& context) {
  using A = Acc<T>;
  Checker<Exec>& checker = context.checker;
  const std::size_t V = extent(context.model().vocab_size),
                    R = std::max<std::size_t>(1, std::min(context.rows(), (std::size_t{8} << 20) / V));
  auto logits = checker.template numbers<T>(R, V);
  auto loss = checker.template blank<A>(1, R);
  const auto target = tokens<Exec>(R, V, true);
  constexpr double scale = 0x1p-9;
  std::vector<double> losses(R), gradients(R * V);
  for (std::size_t r = 0; r < R; ++r) {
    const auto wanted = static_cast<std::int64_t>(target.start(r));
    if (wanted < 0) continue;
    double sum = 0;
    for (std::size_t j = 0; j < V; ++j) sum += std::exp(logits.start(r, j));
    losses[r] = std::log(sum) - logits.start(r, extent(wanted));
    for (std::size_t j = 0; j < V; ++j)
      gradients[r * V + j] = scale * (std::exp(logits.start(r, j)) / sum - (j == extent(wanted) ? 1 : 0));
  }
  const double sums = 8 * std::sqrt(static_cast<double>(V)) * spacing<A>;
  checker.check(
      {"softmax cross-entropy", fmt::format("{} x {}", R, V), 0, 3.0 * static_cast<double>(R * V) * sizeof(T)},
      {expected("gradient", logits, element_bound<T> + sums, std::move(gradients)),
       expected("loss", loss, 16 * spacing<A> + sums, std::move(losses))},
      [&] {
        softmax_cross_entropy<Exec, T>(checker.exec(), target.vector(), A(scale), true, logits.matrix(), loss.vector());
      });
}

template <class Exec, class T>
void check_embedding(const CheckContext<Exec>& context) {
  using A = Acc<T>;
  Checker<Exec>& checker = context.checker;
  const std::size_t N = context.rows(), V = checked_vocabulary(context.model()),
                    D = extent(context.model().hidden_size);
  auto table = checker.template numbers<T>(V, D), dy = checker.template numbers<T>(N, D);
  auto y = checker.template blank<T>(N, D);
  auto dtable = checker.template numbers<A>(V, D);
  const auto token = tokens<Exec>(N, V, false);
  std::vector<double> ys(N * D);
  const auto row_of = [&](std::size_t i) { return static_cast<std::size_t>(token.start(i)); };
  for (std::size_t i = 0; i < N; ++i)
    for (std::size_t j = 0; j < D; ++j) ys[i * D + j] = table.start(row_of(i), j);
  // Gradients of the tokens of the first rows.
  std::vector<double> gradients;
  std::vector<std::size_t> places;
  for (std::size_t first = 0; first < std::min<std::size_t>(N, 32); ++first)
    for (std::size_t j = 0; j < D; ++j) {
      double sum = dtable.start(row_of(first), j);
      for (std::size_t i = 0; i < N; ++i)
        if (row_of(i) == row_of(first)) sum += dy.start(i, j);
      gradients.push_back(sum);
      places.push_back(row_of(first) * D + j);
    }
  const std::string shape = fmt::format("{} of {} x {}", N, V, D);
  const double bytes = static_cast<double>(N * D) * sizeof(T);
  checker.check({"embedding: forward", shape, 0, 2 * bytes}, {expected("y", y, 0, std::move(ys))}, [&] {
    embed<Exec, T>(checker.exec(), token.vector(), table.matrix(), {}, context.sequence, y.matrix());
  });
  std::vector<std::int32_t> all(N), sorted(N), scratch(N);
  for (std::size_t i = 0; i < N; ++i) all[i] = static_cast<std::int32_t>(row_of(i));
  sort_rows(all, sorted, scratch);
  CheckField<Exec, std::int32_t> order(1, N);
  order.fill([&](std::size_t i) { return sorted[i]; });
  const double terms = 8 * std::sqrt(static_cast<double>(N)) * spacing<A>;
  checker.check({"embedding: backward", shape, 0, bytes + 2.0 * static_cast<double>(N * D) * sizeof(A)},
                {expected("dtable", dtable, terms, std::move(gradients), std::move(places))}, [&] {
                  embed_backward<Exec, T>(checker.exec(), {token.vector(), order.vector()}, dy.matrix(),
                                          context.sequence, dtable.matrix(), {});
                });
}

// What is read and written in the place of a weight whose rows are no multiple of row_group elements.
template <class Exec, class T>
void check_copies(const CheckContext<Exec>& context, std::size_t F) {
  Checker<Exec>& checker = context.checker;
  const std::size_t D = extent(context.model().hidden_size);
  auto from = checker.template numbers<T>(D, F), to = checker.template blank<T>(D, F),
       sum = checker.template numbers<T>(D, F);
  std::vector<double> copies(D * F), sums(D * F);
  for (std::size_t i = 0; i < D * F; ++i) {
    copies[i] = from.start(i);
    sums[i] = sum.start(i) + from.start(i);
  }
  const std::string shape = fmt::format("{} x {}", D, F);
  const double bytes = static_cast<double>(D * F) * sizeof(T);
  checker.check({"odd rows: copied", shape, 0, 2 * bytes}, {expected("y", to, 0, std::move(copies))},
                [&] { copy_rows<Exec, T>(checker.exec(), from.matrix(), false, to.matrix()); });
  checker.check({"odd rows: added", shape, 0, 3 * bytes}, {expected("y", sum, element_bound<T>, std::move(sums))},
                [&] { copy_rows<Exec, T>(checker.exec(), from.matrix(), true, sum.matrix()); });
}

}  // namespace

template <class Exec, class T>
void check_rows(const CheckContext<Exec>& context) {
  const ModelConfig& model = context.model();
  const std::size_t F = model.has_experts() ? extent(model.moe_intermediate_size) : extent(mlp_width(model));
  if (F > 0 && model.gated()) check_swiglu<Exec, T>(context, F);
  if (F > 0 && !model.gated()) check_activation<Exec, T>(context, F);
  if (model.position == ModelConfig::Position::rope) check_rope<Exec, T>(context);
  if (F % row_group != 0) check_copies<Exec, T>(context, F);
  check_loss<Exec, T>(context);
  check_embedding<Exec, T>(context);
}

#define SESTINA_CHECK_ROWS(Exec, T) template void check_rows<Exec, T>(const CheckContext<Exec>&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_CHECK_ROWS)

}  // namespace sestina
