// Matrix products of every layer, in the three layouts of a step, and those of optimizers. A product is compared with
// the sum of its formula in some hundred places.
#include <fmt/format.h>

#include <algorithm>

#include "core/check/checker.hpp"
#include "core/layout/model_size.hpp"
#include "core/model/context.hpp"
#include "kernels/blas/gemm.hpp"

namespace sestina {
namespace {

// Places that are compared: the four corners, and others by chance.
std::vector<std::size_t> some_places(std::size_t rows, std::size_t cols) {
  std::vector<std::size_t> places = {0, cols - 1, (rows - 1) * cols, rows * cols - 1};
  for (std::uint64_t i = 0; i < 252; ++i) places.push_back(split_mix(7, i) % (rows * cols));
  return places;
}

// The bound of a sum of k products of uniform numbers, relative to its standard deviation k^(1/2) / 3: the result is
// rounded once as TC (the largest of some hundred is about 4 deviations), and each of k additions as its accumulator,
// whose errors add up as those of a random walk.
template <class TC>
double sum_bound(std::size_t k) {
  return 4 * spacing<TC> + 8 * std::sqrt(static_cast<double>(k)) * spacing<Acc<TC>>;
}

// Returns the sums over k of left(row, p) right(p, col) at these places of (., n).
template <class Left, class Right>
std::vector<double> sums_at(const std::vector<std::size_t>& places, std::size_t n, std::size_t k, const Left& left,
                            const Right& right) {
  std::vector<double> sums;
  for (const std::size_t place : places) {
    double sum = 0;
    for (std::size_t p = 0; p < k; ++p) sum += left(place / n, p) * right(p, place % n);
    sums.push_back(sum);
  }
  return sums;
}

template <class Exec, class TA, class TC>
class ProductCheck {
 public:
  ProductCheck(const CheckContext<Exec>& context, Gemm<Exec>& gemm) : context_(context), gemm_(gemm) {}

  // C (m, n) = op_a(A) op_b(B).
  void run(const std::string& name, Op op_a, Op op_b, std::size_t m, std::size_t n, std::size_t k) {
    Checker<Exec>& checker = context_.checker;
    auto a = op_a == Op::none ? checker.template numbers<TA>(m, k) : checker.template numbers<TA>(k, m);
    auto b = op_b == Op::none ? checker.template numbers<TA>(k, n) : checker.template numbers<TA>(n, k);
    auto c = checker.template blank<TC>(m, n);
    const std::vector<std::size_t> places = some_places(m, n);
    const std::vector<double> sums = sums_at(
        places, n, k, [&](std::size_t i, std::size_t p) { return op_a == Op::none ? a.start(i, p) : a.start(p, i); },
        [&](std::size_t p, std::size_t j) { return op_b == Op::none ? b.start(p, j) : b.start(j, p); });
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    checker.check({name, fmt::format("{} x {} x {}", m, n, k), flops},
                  {expected("C", c, sum_bound<TC>(k), sums, places, std::sqrt(static_cast<double>(k)) / 3)},
                  [&] { gemm_.template operator()<TA, TC>(op_a, op_b, 1, a.matrix(), b.matrix(), 0, c.matrix()); });
  }

  // The products of experts of which each has some of the rows, in one call: y (R, out) = x W_e^T, or with op none
  // dx (R, in) = dy W_e, where W (E out, in) has the weights of all.
  void run_rows(const std::string& name, const std::vector<std::size_t>& ends, Op op, std::size_t out, std::size_t in) {
    Checker<Exec>& checker = context_.checker;
    const std::size_t n = op == Op::none ? in : out, k = op == Op::none ? out : in, rows = ends.back();
    auto x = checker.template numbers<TA>(rows, k);
    auto w = checker.template numbers<TA>(ends.size() * out, in);
    auto y = checker.template blank<TC>(rows, n);
    const std::vector<std::size_t> places = some_places(rows, n);
    std::vector<double> sums;
    for (const std::size_t place : places) {
      const std::size_t row = place / n, j = place % n, first = out * expert_of(ends, row);
      double sum = 0;
      for (std::size_t p = 0; p < k; ++p)
        sum += x.start(row, p) * (op == Op::none ? w.start(first + p, j) : w.start(first + j, p));
      sums.push_back(sum);
    }
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(n) * static_cast<double>(k);
    checker.check({name, fmt::format("{} x ({}) x {} x {}", ends.size(), rows, n, k), flops},
                  {expected("C", y, sum_bound<TC>(k), sums, places, std::sqrt(static_cast<double>(k)) / 3)}, [&] {
                    gemm_.template grouped<TA, TC>(ends.size(), Op::none, op, 1, 0, [&](std::size_t e) {
                      const std::size_t begin = e == 0 ? 0 : ends[e - 1];
                      return GroupOperands<TA, TC, Exec>{row_range(x.matrix(), begin, ends[e]),
                                                         row_range(w.matrix(), e * out, (e + 1) * out),
                                                         row_range(y.matrix(), begin, ends[e])};
                    });
                  });
  }

  // Their gradients of weights, C (E out, in), of expert e the sum over its rows of dy^T x: zero where it has none.
  void run_sums(const std::string& name, const std::vector<std::size_t>& ends, std::size_t out, std::size_t in) {
    Checker<Exec>& checker = context_.checker;
    const std::size_t rows = ends.back();
    auto dy = checker.template numbers<TA>(rows, out);
    auto x = checker.template numbers<TA>(rows, in);
    auto c = checker.template blank<TC>(ends.size() * out, in);
    const std::vector<std::size_t> places = some_places(ends.size() * out, in);
    std::vector<double> sums;
    std::size_t longest = 1;
    for (const std::size_t place : places) {
      const std::size_t e = place / in / out, begin = e == 0 ? 0 : ends[e - 1];
      double sum = 0;
      for (std::size_t r = begin; r < ends[e]; ++r) sum += dy.start(r, place / in % out) * x.start(r, place % in);
      sums.push_back(sum);
      longest = std::max(longest, ends[e] - begin);
    }
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in);
    checker.check({name, fmt::format("{} x {} x {} x ({})", ends.size(), out, in, rows), flops},
                  {expected("C", c, sum_bound<TC>(longest), sums, places, std::sqrt(static_cast<double>(longest)) / 3)},
                  [&] {
                    gemm_.template grouped<TA, TC>(ends.size(), Op::transpose, Op::none, 1, 0, [&](std::size_t e) {
                      const std::size_t begin = e == 0 ? 0 : ends[e - 1];
                      return GroupOperands<TA, TC, Exec>{row_range(dy.matrix(), begin, ends[e]),
                                                         row_range(x.matrix(), begin, ends[e]),
                                                         row_range(c.matrix(), e * out, (e + 1) * out)};
                    });
                  });
  }

  // C (m, m) = A A^T, of which the library may form one half.
  void run_symmetric(const std::string& name, std::size_t m, std::size_t k) {
    Checker<Exec>& checker = context_.checker;
    auto a = checker.template numbers<TA>(m, k);
    auto c = checker.template blank<TC>(m, m);
    const std::vector<std::size_t> places = some_places(m, m);
    const std::vector<double> sums = sums_at(
        places, m, k, [&](std::size_t i, std::size_t p) { return a.start(i, p); },
        [&](std::size_t p, std::size_t j) { return a.start(j, p); });
    const double flops = static_cast<double>(m) * static_cast<double>(m) * static_cast<double>(k);
    // Diagonal elements are sums of squares, k / 3: their one rounding is relative to that.
    const double diagonal = static_cast<double>(k) / 3;
    checker.check({name, fmt::format("{} x {} x {}", m, m, k), flops},
                  {expected("C", c, sum_bound<TC>(k), sums, places, diagonal)},
                  [&] { gemm_.template symmetric<TA, TC>(Op::none, 1, a.matrix(), 0, c.matrix()); });
  }

 private:
  static std::size_t expert_of(const std::vector<std::size_t>& ends, std::size_t row) {
    return static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), row) - ends.begin());
  }
  const CheckContext<Exec>& context_;
  Gemm<Exec>& gemm_;
};

// Ends of the rows of some experts with so many in the mean: unequal numbers, and one expert without any.
std::vector<std::size_t> uneven_rows(std::size_t experts, std::size_t mean) {
  std::vector<std::size_t> ends;
  for (std::size_t e = 0; e < experts; ++e)
    ends.push_back((ends.empty() ? 0 : ends.back()) + (e == 1 ? 0 : mean / 2 + split_mix(11, e) % (mean + 1)));
  return ends;
}

}  // namespace

template <class Exec, class T>
void check_products(const CheckContext<Exec>& context) {
  const ModelConfig& model = context.model();
  Gemm<Exec> gemm(context.checker.exec(), context.options.run.deterministic);
  ProductCheck<Exec, T, T> passes(context, gemm);
  ProductCheck<Exec, T, Acc<T>> gradients(context, gemm);
  const auto layer = [&](const std::string& name, std::size_t in, std::size_t out, std::size_t rows) {
    passes.run(name + ": forward", Op::none, Op::transpose, rows, out, in);
    passes.run(name + ": input gradient", Op::none, Op::none, rows, in, out);
    gradients.run(name + ": weight gradient", Op::transpose, Op::none, out, in, rows);
  };
  const std::size_t D = extent(model.hidden_size), F = extent(mlp_width(model)), Q = extent(model.query_width()),
                    N = context.rows();
  layer("q, k, v", D, Q + 2 * extent(model.key_value_width()), N);
  layer("o", Q, D, N);
  if (F > 0) {
    layer(model.gated() ? "gate, up" : "up", D, extent(up_width(model)), N);
    layer("down", F, D, N);
  }
  if (model.has_experts()) {
    const std::size_t inner = extent(model.moe_intermediate_size),
                      rows =
                          std::max<std::size_t>(1, N * extent(model.num_experts_per_tok) / extent(model.num_experts));
    layer("expert gate, up", D, 2 * inner, rows);
    layer("expert down", inner, D, rows);
    const std::vector<std::size_t> ends = uneven_rows(std::min<std::size_t>(extent(model.num_experts), 16), rows);
    passes.run_rows("experts together: forward", ends, Op::transpose, 2 * inner, D);
    passes.run_rows("experts together: input gradient", ends, Op::none, 2 * inner, D);
    gradients.run_sums("experts together: weight gradient", ends, 2 * inner, D);
  }
  layer("head", D, checked_vocabulary(model), std::min<std::size_t>(N, 256));
  ProductCheck<Exec, float, float>(context, gemm).run_symmetric("factor: A A^T in fp32", D, std::max(D, F));
  if constexpr (std::is_same_v<T, bf16>) passes.run_symmetric("Gram matrix: A A^T in bf16", D, std::max(D, F));
}

#define SESTINA_CHECK_PRODUCTS(Exec, T) template void check_products<Exec, T>(const CheckContext<Exec>&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_CHECK_PRODUCTS)

}  // namespace sestina
