// The passes that optimizers are made of: AdamW's, Newton-Schulz iteration, and Muon's of several matrices, compared
// with their formulas.
#include <fmt/format.h>

#include "core/check/checker.hpp"
#include "core/layout/model_size.hpp"
#include "kernels/optimizer/adamw.hpp"
#include "kernels/optimizer/muon/muon_batch.hpp"
#include "kernels/optimizer/newton_schulz.hpp"
#include "kernels/optimizer/newton_schulz_sets.hpp"

namespace sestina {
namespace {

template <class Exec, class T>
void check_adamw(const CheckContext<Exec>& context) {
  using A = Acc<T>;
  Checker<Exec>& checker = context.checker;
  const std::size_t n = std::min<std::size_t>(
      extent(context.model().hidden_size) * std::max<std::size_t>(1, extent(mlp_width(context.model()))), 1 << 21);
  auto g = checker.template numbers<A>(1, n), w = checker.template numbers<A>(1, n),
       m = checker.template numbers<A>(1, n), v = checker.template blank<A>(1, n);
  v.fill([&](std::size_t i) { return static_cast<float>(g.start(i) * g.start(i) + 0.01); });
  constexpr bool narrow = !std::is_same_v<T, A>;
  auto rounded = checker.template blank<T>(1, narrow ? n : 0);
  const AdamWStep step{.lr = 0.01, .weight_decay = 0.1, .bias_correction1 = 0.5, .bias_correction2 = 0.25};
  std::vector<double> ws(n), ms(n), vs(n);
  for (std::size_t i = 0; i < n; ++i) {
    ms[i] = step.beta1 * m.start(i) + (1 - step.beta1) * g.start(i);
    vs[i] = step.beta2 * v.start(i) + (1 - step.beta2) * g.start(i) * g.start(i);
    ws[i] = (1 - step.lr * step.weight_decay) * w.start(i) -
            step.lr / step.bias_correction1 * ms[i] / (std::sqrt(vs[i] / step.bias_correction2) + step.eps);
  }
  constexpr double bound = 16 * spacing<A>;  // some ten roundings each
  std::vector<CheckedOutput> outputs = {expected("m", m, bound, ms), expected("v", v, bound, vs),
                                        expected("master", w, bound, ws)};
  if (narrow) outputs.push_back(expected("weight", rounded, spacing<T>, ws));
  const double bytes = static_cast<double>(n) * (7 * sizeof(A) + (narrow ? sizeof(T) : 0));
  checker.check({"AdamW", fmt::format("{}", n), 0, bytes}, std::move(outputs), [&] {
    adamw<Exec, T>(checker.exec(), step,
                   element_run<Exec, T>(g.vector(), w.vector(), rounded.vector(), {m.vector(), v.vector()}));
  });
}

// Returns the bound of an error relative to the largest entry. Sums of s and l terms round like random walks, and five
// steps enlarge that some thirty times; in bf16 each step rounds a matrix to 8 bits, relative to its largest entries.
double newton_schulz_bound(bool in_bf16, std::size_t sides, double largest) {
  return in_bf16 ? 16 * spacing<bf16>
                 : 30 * std::sqrt(static_cast<double>(sides)) * static_cast<double>(spacing<float>) / largest;
}

// The plain loops take s^2 l for each product: they bound the shape.
template <class Exec>
void check_newton_schulz(const CheckContext<Exec>& context, bool in_bf16) {
  Checker<Exec>& checker = context.checker;
  const std::size_t s = std::min<std::size_t>(extent(context.model().hidden_size), 128),
                    l = std::min<std::size_t>(std::max(extent(mlp_width(context.model())), s), 384);
  const std::vector<NewtonSchulzStep> steps = newton_schulz_steps("simple", 5);
  const NewtonSchulz ns{steps};
  auto x = checker.template numbers<float>(s, l);
  auto y = checker.template blank<float>(s, l);
  std::vector<double> plain(s * l);
  for (std::size_t i = 0; i < plain.size(); ++i) plain[i] = x.start(i);
  newton_schulz_plain(ns, s, l, plain);
  double size = 0;
  for (const double value : plain) size = std::max(size, std::abs(value));
  Gemm<Exec> gemm(checker.exec(), context.options.run.deterministic);
  Workspace<Exec> workspace(bytes_taken<Exec>([&](auto& counter) { declare_orthogonalize(counter, s, l, ns); }));
  const double bound = newton_schulz_bound(in_bf16, s + l, size);
  checker.check({in_bf16 ? "Newton-Schulz in bf16" : "Newton-Schulz in fp32", fmt::format("{} x {}", s, l),
                 newton_schulz_flops(steps, false, static_cast<double>(s), static_cast<double>(l))},
                {expected("direction", y, bound, plain)},
                [&] { orthogonalize<Exec>(checker.exec(), gemm, workspace, ns, in_bf16, x.matrix(), y.matrix()); });
}

// A matrix of a batch: it moves from zero, by its direction.
template <class Exec>
struct CheckedMatrix {
  CheckField<Exec, float> gradient, momentum, master;
  CheckedMatrix(Checker<Exec>& checker, std::size_t rows, std::size_t cols)
      : gradient(checker.template numbers<float>(rows, cols)),
        momentum(checker.template numbers<float>(rows, cols)),
        master(checker.template blank<float>(rows, cols)) {
    master.fill([](std::size_t) { return 0.0f; });
  }
  BatchedMatrix in_batch() const {
    BatchedMatrix matrix;
    matrix.gradient = gradient.vector().data();
    matrix.momentum = momentum.vector().data();
    matrix.master = master.vector().data();
    matrix.rows = static_cast<std::uint32_t>(master.rows());
    matrix.cols = static_cast<std::uint32_t>(master.cols());
    matrix.lr = 1;
    return matrix;
  }
  // Appends what its momentum and its weights become.
  void expect(const NewtonSchulz& ns, const MomentumStep& step, bool in_bf16, std::vector<CheckedOutput>& outputs) {
    std::vector<double> moved(master.size()), direction(master.size());
    double largest = 0;
    for (std::size_t i = 0; i < moved.size(); ++i) {
      moved[i] = step.keep * momentum.start(i) + step.gain * gradient.start(i);
      direction[i] = step.p * gradient.start(i) + step.q * moved[i];
    }
    newton_schulz_plain(ns, master.rows(), master.cols(), direction);
    for (double& value : direction) {
      largest = std::max(largest, std::abs(value));
      value = -value;
    }
    const double bound = newton_schulz_bound(in_bf16, master.rows() + master.cols(), largest);
    outputs.push_back(expected("momentum", momentum, 4 * spacing<float>, moved));
    outputs.push_back(expected("master", master, bound, direction));
  }
};

// Two matrices and a transpose in a stack, and another stack.
template <class Exec, class T>
void check_muon_batch(const CheckContext<Exec>& context, bool gram_norm) {
  Checker<Exec>& checker = context.checker;
  const std::size_t s = std::min<std::size_t>(extent(context.model().hidden_size), 96),
                    l = std::min<std::size_t>(std::max(extent(mlp_width(context.model())), s), 160);
  const std::vector<NewtonSchulzStep> steps = newton_schulz_steps("simple", 5);
  NewtonSchulz ns{steps};
  ns.gram_norm = gram_norm;
  const MomentumStep momentum = momentum_step({0.9375, 0.0625, 0.0625, 0.9375}, 1);
  std::vector<CheckedMatrix<Exec>> matrices;
  for (const auto& [rows, cols] : {std::pair(s, l), std::pair(l, s), std::pair(s, l), std::pair(s, s)})
    matrices.emplace_back(checker, rows, cols);
  std::vector<BatchedMatrix> table;
  std::vector<CheckedOutput> outputs;
  constexpr bool in_bf16 = std::is_same_v<T, bf16>;
  for (CheckedMatrix<Exec>& matrix : matrices) {
    table.push_back(matrix.in_batch());
    matrix.expect(ns, momentum, in_bf16, outputs);
  }
  const MuonBatch<Exec> batch = make_muon_batch<Exec>(table);
  Gemm<Exec> gemm(checker.exec(), context.options.run.deterministic);
  Workspace<Exec> workspace(bytes_of<MuonBatchScratch<T, Exec>, Exec>(ns, batch.sizes));
  const MuonBatchScratch<T, Exec> scratch(workspace, ns, batch.sizes);
  WeightMove move;
  move.lr = 1;
  checker.check({in_bf16 ? "Muon of a batch in bf16" : "Muon of a batch in fp32",
                 fmt::format("4 of {} x {}{}", s, l, gram_norm ? ", Gram norm" : "")},
                std::move(outputs), [&] {
                  advance_momenta<Exec>(checker.exec(), momentum, batch, scratch.squares);
                  const auto directions =
                      batched_newton_schulz<T, Exec>(checker.exec(), gemm, ns, momentum, batch, scratch);
                  move_batch<T, Exec>(checker.exec(), move, batch, directions);
                });
}

}  // namespace

template <class Exec, class T>
void check_updates(const CheckContext<Exec>& context) {
  check_adamw<Exec, T>(context);
  check_newton_schulz(context, false);
  for (const bool gram_norm : {false, true}) check_muon_batch<Exec, float>(context, gram_norm);
  if constexpr (std::is_same_v<T, bf16>) {
    check_newton_schulz(context, true);
    for (const bool gram_norm : {false, true}) check_muon_batch<Exec, bf16>(context, gram_norm);
  }
}

#define SESTINA_CHECK_UPDATES(Exec, T) template void check_updates<Exec, T>(const CheckContext<Exec>&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_CHECK_UPDATES)

}  // namespace sestina
