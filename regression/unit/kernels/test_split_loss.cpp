// Cross-entropy of logits cut by columns, joined here by hand, against the kernel that sees them whole.
#include <limits>

#include "../reference.hpp"
#include "kernels/model/loss.hpp"

namespace sestina {
namespace {

using namespace reference;

template <class C>
class SplitLoss : public testing::Test {
 protected:
  using Exec = typename C::Exec;
  using T = typename C::T;
  Exec exec_;
};
TYPED_TEST_SUITE(SplitLoss, AllCases);

Array columns_of(const Array& a, std::size_t begin, std::size_t end) {
  Array part(a.rows, end - begin);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = begin; j < end; ++j) part(i, j - begin) = a(i, j);
  return part;
}

struct SplitResult {
  Array loss, gradient;
};

// Columns [edges(i), edges(i + 1)) play rank i.
template <class Exec, class T>
SplitResult joined(const Exec& exec, const Array& x, const std::vector<int>& targets,
                   const std::vector<std::size_t>& edges, double scale, bool want_gradient, SoftCap cap = {}) {
  using A = Acc<T>;
  const Indices<Exec> target(targets);
  const std::size_t n = x.rows;
  Array largest(1, n, -std::numeric_limits<double>::infinity()), sum(1, n), picked(1, n);
  std::vector<Field<T, Exec>> parts;
  for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
    parts.emplace_back(columns_of(x, edges[i], edges[i + 1]), i);
    Field<A, Exec> own(1, n);
    row_largest<Exec, T>(exec, target.vector(), parts[i].read(), own.vector());
    const Array found = own.get();
    for (std::size_t r = 0; r < n; ++r) largest(0, r) = std::max(largest(0, r), found(0, r));
  }
  const Field<A, Exec> top(largest);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Field<A, Exec> own_sum(1, n), own_picked(1, n);
    row_exponentials<Exec, T>(exec, target.vector(), static_cast<int>(edges[i]), top.read_vector(), parts[i].read(),
                              own_sum.vector(), own_picked.vector());
    const Array s = own_sum.get(), p = own_picked.get();
    for (std::size_t r = 0; r < n; ++r) {
      sum(0, r) += s(0, r);
      picked(0, r) += p(0, r);
    }
  }
  const Field<A, Exec> sums(sum), picks(picked);
  SplitResult result{Array(1, n), Array(n, x.cols)};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Field<A, Exec> loss(1, n);
    split_cross_entropy<Exec, T>(exec, target.vector(), static_cast<int>(edges[i]), top.read_vector(),
                                 sums.read_vector(), picks.read_vector(), static_cast<A>(scale), want_gradient,
                                 parts[i].matrix(), loss.vector(), cap);
    result.loss = loss.get();
    const Array own = parts[i].get();
    for (std::size_t r = 0; r < n; ++r)
      for (std::size_t j = 0; j < own.cols; ++j) result.gradient(r, edges[i] + j) = own(r, j);
  }
  return result;
}

TYPED_TEST(SplitLoss, IsTheLossOfAllColumns) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = Acc<T>;
  struct Size {
    std::size_t n;
    std::vector<std::size_t> edges;
  };
  for (const Size& s : {Size{5, {0, 19, 37}}, Size{3, {0, 2501, 2501, 5001}}, Size{1, {0, 1, 2}}, Size{0, {0, 4, 8}}}) {
    const std::size_t v = s.edges.back();
    const Array x = rounded<T>(random_array(s.n, v, 1, 3, 4));
    std::vector<int> targets(s.n);
    for (std::size_t i = 0; i < s.n; ++i) targets[i] = static_cast<int>((7 * i + v - 1) % v);
    if (s.n > 1) targets[1] = -1;
    Field<T, Exec> logits(x);
    Field<A, Exec> loss(1, s.n);
    softmax_cross_entropy<Exec, T>(this->exec_, Indices<Exec>(targets).vector(), A(0.125), true, logits.matrix(),
                                   loss.vector());
    // Both sums of v terms, in another order.
    const double bound = (16 + std::sqrt(static_cast<double>(v))) * epsilon<A>;
    const SplitResult got = joined<Exec, T>(this->exec_, x, targets, s.edges, 0.125, true);
    expect_close(got.loss, loss.get(), bound, "loss");
    expect_close(got.gradient, logits.get(), epsilon<T> + bound, "gradient");
    const SoftCap cap{20, SoftCap::Form::root};  // x stands for logits that are bounded already
    const Field<T, Exec> again(x);
    softmax_cross_entropy<Exec, T>(this->exec_, Indices<Exec>(targets).vector(), A(0.125), true, again.matrix(),
                                   loss.vector(), cap);
    const SplitResult bounded = joined<Exec, T>(this->exec_, x, targets, s.edges, 0.125, true, cap);
    expect_close(bounded.gradient, again.get(), epsilon<T> + bound, "gradient through the bound");
    const SplitResult loss_alone = joined<Exec, T>(this->exec_, x, targets, s.edges, 0, false);
    expect_same(loss_alone.loss, got.loss, "loss alone");
    expect_same(loss_alone.gradient, x, "logits without gradient");
  }
}

TYPED_TEST(SplitLoss, OneNonFiniteLogitSpoilsItsRow) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  const double bad[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity()};
  Array x = random_array(4, 90, 1);
  for (std::size_t i = 0; i < 3; ++i) x(i, 35 * i) = bad[i];
  const SplitResult got = joined<Exec, T>(this->exec_, x, {1, 2, 3, 4}, {0, 40, 90}, 1, true);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(std::isfinite(got.loss(0, i))) << i;
  EXPECT_TRUE(std::isfinite(got.loss(0, 3)));
}

}  // namespace
}  // namespace sestina
