// Cross-entropy and embedding against their definitions in double.
#include <limits>

#include "../reference.hpp"
#include "kernels/model/loss.hpp"

namespace sestina {
namespace {

using namespace reference;

double plain_loss(const Array& logits, std::size_t row, int target) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::size_t j = 0; j < logits.cols; ++j) largest = std::max(largest, logits(row, j));
  for (std::size_t j = 0; j < logits.cols; ++j) sum += std::exp(logits(row, j) - largest);
  return largest + std::log(sum) - logits(row, static_cast<std::size_t>(target));
}

std::vector<int> random_tokens(std::size_t n, int vocabulary, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<int> tokens(n);
  for (int& token : tokens) token = static_cast<int>(engine() % static_cast<unsigned>(vocabulary));
  return tokens;
}

std::vector<int> sorted_rows(const std::vector<int>& tokens) {
  std::vector<int> order(tokens.size()), scratch(tokens.size());
  sort_rows(tokens, order, scratch);
  return order;
}

template <class C>
class Loss : public testing::Test {
 protected:
  using Exec = typename C::Exec;
  using T = typename C::T;
  Exec exec_;
};
TYPED_TEST_SUITE(Loss, AllCases);

TYPED_TEST(Loss, CrossEntropyAndItsGradient) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = Acc<T>;
  const A scale = A(0.125);
  for (const auto& [n, v] : {std::array<std::size_t, 2>{5, 37}, {3, 5001}, {2, 1}, {0, 8}}) {
    const Array x = rounded<T>(random_array(n, v, 1, 3, 4));
    std::vector<int> target = random_tokens(n, static_cast<int>(v), 7);
    if (n > 1) target[1] = -1;
    Array want(1, n), slope(n, v);
    for (std::size_t i = 0; i < n; ++i) {
      if (target[i] < 0) continue;
      want(0, i) = plain_loss(x, i, target[i]);
      for (std::size_t j = 0; j < v; ++j) {
        const double p = std::exp(-plain_loss(x, i, static_cast<int>(j)));
        slope(i, j) = scale * (p - (static_cast<int>(j) == target[i] ? 1 : 0));
      }
    }
    Field<T, Exec> logits(x, 3);
    Field<A, Exec> loss(1, n);
    Indices<Exec> wanted(target);
    softmax_cross_entropy<Exec, T>(this->exec_, wanted.vector(), scale, false, logits.matrix(), loss.vector());
    // A sum of v positive terms and one logarithm; without vectors it is one chain, whose roundings add up like a
    // random walk.
    const double bound = (16 + std::sqrt(static_cast<double>(v))) * epsilon<A>;
    expect_close(loss.get(), want, bound, "loss");
    expect_same(logits.get(), x, "logits without gradient");
    softmax_cross_entropy<Exec, T>(this->exec_, wanted.vector(), scale, true, logits.matrix(), loss.vector());
    expect_close(loss.get(), want, bound, "loss");
    expect_close(logits.get(), slope, epsilon<T> + bound, "gradient");
  }
}

// Logits that grow along the row, so that each block of it has a larger top than those before; more blocks than have a
// place where blocks had always one width.
TYPED_TEST(Loss, GradientsOfGrowingLogits) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = Acc<T>;
  for (const std::size_t v : {std::size_t{4096}, std::size_t{140001}}) {
    Array x(1, v), slope(1, v), want(1, 1);
    for (std::size_t j = 0; j < v; ++j) x(0, j) = 20.0 * static_cast<double>(j) / static_cast<double>(v);
    x = rounded<T>(x);
    const int target = static_cast<int>(v / 3);
    want(0, 0) = plain_loss(x, 0, target);
    const double log_sum = want(0, 0) + x(0, static_cast<std::size_t>(target));
    for (std::size_t j = 0; j < v; ++j) slope(0, j) = std::exp(x(0, j) - log_sum) - (static_cast<int>(j) == target);
    Field<T, Exec> logits(x);
    Field<A, Exec> loss(1, 1);
    softmax_cross_entropy<Exec, T>(this->exec_, Indices<Exec>({target}).vector(), A(1), true, logits.matrix(),
                                   loss.vector());
    const double bound = (16 + std::sqrt(static_cast<double>(v))) * epsilon<A>;  // as above
    expect_close(loss.get(), want, bound, "loss");
    expect_close(logits.get(), slope, epsilon<T> + bound, "gradient");
  }
}

Array plain_soft_cap(const Array& x, SoftCap cap) {
  Array z = x;
  for (double& v : z.values)
    v = cap.form == SoftCap::Form::root ? cap.bound * v / std::sqrt(v * v + cap.bound * cap.bound)
                                        : cap.bound * std::tanh(v / cap.bound);
  return z;
}

TYPED_TEST(Loss, BoundedLogitsBothWays) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = Acc<T>;
  for (const SoftCap cap : {SoftCap{15, SoftCap::Form::root}, SoftCap{3, SoftCap::Form::tanh}}) {
    const std::size_t n = 5, v = 37;
    const Array x = rounded<T>(random_array(n, v, 1, 0, 4));
    std::vector<int> target = random_tokens(n, static_cast<int>(v), 7);
    target[1] = -1;
    Field<T, Exec> logits(x, 3);
    Field<A, Exec> loss(1, n);
    Indices<Exec> wanted(target);
    soft_cap<Exec, T>(this->exec_, cap, logits.matrix());
    expect_close(logits.get(), plain_soft_cap(x, cap), epsilon<T> + 8 * epsilon<A>, "bounded logits");
    softmax_cross_entropy<Exec, T>(this->exec_, wanted.vector(), A(1), true, logits.matrix(), loss.vector(), cap);
    const auto total = [&](const Array& y) {
      const Array z = plain_soft_cap(y, cap);
      double sum = 0;
      for (std::size_t i = 0; i < n; ++i)
        if (target[i] >= 0) sum += plain_loss(z, i, target[i]);
      return sum;
    };
    // The slope is that of the rounded bounded logit: its error is some units of T where it is not small.
    expect_close(logits.get(), differences(x, total), 16 * epsilon<T> + difference_tolerance, "gradient");
  }
  Array bad(1, 8, std::numeric_limits<double>::infinity());
  Field<T, Exec> logits(bad);
  soft_cap<Exec, T>(this->exec_, {15, SoftCap::Form::tanh}, logits.matrix());
  EXPECT_FALSE(std::isfinite(logits.get()(0, 3)));
}

TYPED_TEST(Loss, OneNonFiniteLogitSpoilsItsRow) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  const double bad[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity()};
  const std::size_t v = 4100;
  Array x = random_array(4, v, 1);
  for (std::size_t i = 0; i < 3; ++i) x(i, 1500 * i) = bad[i];
  Field<T, Exec> logits(x);
  Field<Acc<T>, Exec> loss(1, 4);
  softmax_cross_entropy<Exec, T>(this->exec_, Indices<Exec>({1, 2, 3, 4}).vector(), 1, true, logits.matrix(),
                                 loss.vector());
  const Array got = loss.get();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(std::isfinite(got(0, i))) << i;
  EXPECT_TRUE(std::isfinite(got(0, 3)));
}

TYPED_TEST(Loss, EmbeddingBothWays) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = Acc<T>;
  struct Size {
    std::size_t batch, sequence, vocabulary, d;
  };
  for (const Size s : {Size{3, 11, 9, 37}, Size{1, 5, 400, 8}, Size{0, 5, 4, 8}}) {
    const std::size_t n = s.batch * s.sequence;
    const std::vector<int> tokens = random_tokens(n, static_cast<int>(s.vocabulary), 3);
    const Array t = rounded<T>(random_array(s.vocabulary, s.d, 1)),
                p = rounded<T>(random_array(s.sequence + 2, s.d, 2));
    const Array dy = rounded<T>(random_array(n, s.d, 4));
    Array without(n, s.d), with(n, s.d), dt(s.vocabulary, s.d, 0.5), dp(s.sequence + 2, s.d, 0.5);
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t j = 0; j < s.d; ++j) {
        const auto token = static_cast<std::size_t>(tokens[r]);
        without(r, j) = t(token, j);
        with(r, j) = t(token, j) + p(r % s.sequence, j);
        dt(token, j) += dy(r, j);
        dp(r % s.sequence, j) += dy(r, j);
      }
    }
    const Indices<Exec> token(tokens), order(sorted_rows(tokens));
    const TokenRows<Exec> rows{token.vector(), order.vector()};
    const int sequence = static_cast<int>(s.sequence);
    Field<T, Exec> table(t, 1), position(p, 2), y(n, s.d, 3), grad(dy, 4);
    Field<A, Exec> dtable(Array(s.vocabulary, s.d, 0.5), 1), dposition(Array(s.sequence + 2, s.d, 0.5), 2);
    embed<Exec, T>(this->exec_, token.vector(), table.read(), {}, sequence, y.matrix());
    expect_same(y.get(), without, "embedding");
    embed<Exec, T>(this->exec_, token.vector(), table.read(), position.read(), sequence, y.matrix());
    expect_close(y.get(), with, epsilon<T>, "embedding with position");
    embed_backward<Exec, T>(this->exec_, rows, grad.read(), sequence, dtable.matrix(), {});
    expect_close(dtable.get(), dt, 8 * epsilon<A>, "dtable");
    embed_backward<Exec, T>(this->exec_, rows, grad.read(), sequence, dtable.matrix(), dposition.matrix());
    expect_close(dposition.get(), dp, 8 * epsilon<A>, "dposition");
  }
}

// A table of some of the tokens: the others give zero rows, and no gradient.
TYPED_TEST(Loss, EmbeddingOfAPartOfTheVocabulary) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = Acc<T>;
  const std::size_t n = 33, d = 13, first = 4, own = 3;
  const std::vector<int> tokens = random_tokens(n, 11, 3);
  const Array t = rounded<T>(random_array(own, d, 1)), p = rounded<T>(random_array(11, d, 2));
  const Array dy = rounded<T>(random_array(n, d, 4));
  Array without(n, d), with(n, d), dt(own, d, 0.5), dp(11, d, 0.5);
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t j = 0; j < d; ++j) {
      const auto token = static_cast<std::size_t>(tokens[r]);
      const bool here = first <= token && token < first + own;
      without(r, j) = here ? t(token - first, j) : 0;
      with(r, j) = without(r, j) + p(r % 11, j);
      if (here) dt(token - first, j) += dy(r, j);
      dp(r % 11, j) += dy(r, j);
    }
  }
  const Indices<Exec> token(tokens), order(sorted_rows(tokens));
  Field<T, Exec> table(t, 1), position(p, 2), y(n, d, 3), grad(dy, 4);
  Field<A, Exec> dtable(Array(own, d, 0.5), 1), dposition(Array(11, d, 0.5), 2);
  embed<Exec, T>(this->exec_, token.vector(), table.read(), {}, 11, y.matrix(), first);
  expect_same(y.get(), without, "embedding");
  embed<Exec, T>(this->exec_, token.vector(), table.read(), position.read(), 11, y.matrix(), first);
  expect_close(y.get(), with, epsilon<T>, "embedding with position");
  embed_backward<Exec, T>(this->exec_, {token.vector(), order.vector()}, grad.read(), 11, dtable.matrix(),
                          dposition.matrix(), first);
  expect_close(dtable.get(), dt, 8 * epsilon<A>, "dtable");
  expect_close(dposition.get(), dp, 8 * epsilon<A>, "dposition");
}

// A token of each size of digit, some of them several times, and none.
TEST(LossOnHost, RowsAreSortedByTokenAndStayInOrder) {
  const std::vector<int> tokens{5, 70000, 2048, 5, 2047, 5, 1 << 23, 70000, 0};
  EXPECT_EQ(sorted_rows(tokens), (std::vector<int>{8, 0, 3, 5, 4, 2, 1, 7, 6}));
  EXPECT_EQ(sorted_rows({0, 0, 0}), (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(sorted_rows({}).empty());
}

TEST(LossOnHost, BitsDoNotDependOnTheThreadCount) {
  const std::size_t n = 333, d = 24;
  const Array dy = random_array(n, d, 1);
  const std::vector<int> tokens = random_tokens(n, 20, 3);
  const Indices<Host> token(tokens), order(sorted_rows(tokens));
  expect_same_for_any_thread_count([&](const Host& exec) {
    Field<float, Host> grad(dy), dtable(Array(20, d)), dposition(Array(9, d));
    embed_backward<Host, float>(exec, {token.vector(), order.vector()}, grad.read(), 9, dtable.matrix(),
                                dposition.matrix());
    return std::vector<Array>{dtable.get(), dposition.get()};
  });
}

}  // namespace
}  // namespace sestina
