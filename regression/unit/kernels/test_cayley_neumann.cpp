// Cayley-Neumann rotations and products with block-diagonal matrices against dense products of doubles, identities of
// the series, and finite differences.
#include "../linear_algebra.hpp"
#include "../reference.hpp"
#include "../spaces.hpp"
#include "kernels/model/block_rotations.hpp"
#include "kernels/model/device/block_series.hpp"

namespace sestina {
namespace {

using namespace reference;

Array sum(const Array& a, double factor, const Array& b) {
  Array c = a;
  for (std::size_t i = 0; i < c.values.size(); ++i) c.values[i] += factor * b.values[i];
  return c;
}
// The skew matrix of block `block` of theta (1, blocks b (b - 1) / 2).
Array skew(const Array& theta, std::size_t block, std::size_t b) {
  Array q(b, b);
  std::size_t at = block * skew_elements(b);
  for (std::size_t i = 0; i < b; ++i)
    for (std::size_t j = i + 1; j < b; ++j) {
      q(i, j) = theta.values[at];
      q(j, i) = -theta.values[at++];
    }
  return q;
}
Array series(const Array& q, double k) {
  const Array q2 = product(q, q), q3 = product(q2, q), q4 = product(q2, q2);
  return sum(sum(sum(sum(identity(q.rows), 2, q), 2, q2), 2, q3), k, q4);
}
// Blocks of G one below the other.
Array stacked(const Array& theta, std::size_t blocks, std::size_t b, double k) {
  Array g(blocks * b, b);
  for (std::size_t block = 0; block < blocks; ++block) {
    const Array one = series(skew(theta, block, b), k);
    std::copy(one.values.begin(), one.values.end(), g.values.begin() + static_cast<std::ptrdiff_t>(block * b * b));
  }
  return g;
}
Array diagonal_of_blocks(const Array& blocks) {
  const std::size_t b = blocks.cols;
  Array a(blocks.rows, blocks.rows);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < b; ++j) a(i, i / b * b + j) = blocks(i, j);
  return a;
}

struct Size {
  std::size_t blocks, b;
  double k, length;  // of the elements of theta
};
const Size sizes[] = {{1, 2, 1, .3}, {3, 4, 1, .2}, {2, 17, 2, .05}, {1, 64, 1, .02}, {5, 8, 2, 0}};

template <class C>
class CayleyNeumann : public testing::Test {
 protected:
  using Exec = typename C::Exec;
  using T = typename C::T;
  Exec exec_;
  Gemm<Exec> gemm_{exec_};
  Workspace<Exec> workspace_{std::size_t{1} << 22};

  Array forward(const Size& s, const Array& theta) {
    const Field<Acc<T>, Exec> packed(theta);
    const Field<T, Exec> g(s.blocks * s.b, s.b);
    cayley_neumann<Exec, T>(exec_, gemm_, workspace_, s.k, packed.read_vector(), g.matrix());
    return g.get();
  }
};
TYPED_TEST_SUITE(CayleyNeumann, AllCases);

TYPED_TEST(CayleyNeumann, IsTheSeries) {
  using T = typename TestFixture::T;
  for (const Size& s : sizes) {
    const Array theta = rounded<Acc<T>>(random_array(1, s.blocks * skew_elements(s.b), 1, 0, s.length));
    // Two products of b terms and one rounding to T; entries are of the order of 1.
    expect_close(this->forward(s, theta), stacked(theta, s.blocks, s.b, s.k),
                 2 * epsilon<T> + 8 * static_cast<double>(s.b) * epsilon<Acc<T>>, "G");
  }
}

TYPED_TEST(CayleyNeumann, OfZeroIsTheIdentityExactly) {
  const Size s{2, 8, 1, 0};
  const Array g = this->forward(s, Array(1, s.blocks * skew_elements(s.b)));
  for (std::size_t i = 0; i < g.rows; ++i)
    for (std::size_t j = 0; j < g.cols; ++j) EXPECT_EQ(g(i, j), i % s.b == j ? 1.0 : 0.0);
}

// G^T G = (I - Q^4)^2 as published, I + 4 Q^6 + 4 Q^8 with the even series.
TEST(CayleyNeumannIdentity, GramMatrixIsThatOfTheSeries) {
  const std::size_t b = 16;
  Host exec;
  Gemm<Host> gemm(exec);
  Workspace<Host> workspace(std::size_t{1} << 20);
  const Array theta = random_array(1, skew_elements(b), 2, 0, .08), q = skew(theta, 0, b), q2 = product(q, q),
              q4 = product(q2, q2), short_of = sum(identity(b), -1, q4);
  const Array want[] = {product(short_of, short_of), sum(sum(identity(b), 4, product(q4, q2)), 4, product(q4, q4))};
  for (const int k : {1, 2}) {
    const Field<double, Host> packed(theta), g(b, b);
    cayley_neumann<Host, double>(exec, gemm, workspace, k, packed.read_vector(), g.matrix());
    const Array got = g.get();
    expect_close(product(transposed(got), got), want[k - 1], 1e-13, "G^T G");  // sums of 16 terms below 2, three deep
  }
}

TYPED_TEST(CayleyNeumann, BackwardIsTheGradientByDifferences) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = Acc<T>;
  for (const Size& s : sizes) {
    const std::size_t n = s.blocks * s.b;
    const Array theta = rounded<A>(random_array(1, s.blocks * skew_elements(s.b), 3, 0, s.length));
    const Array d_g = rounded<A>(random_array(n, s.b, 4));
    const Field<A, Exec> packed(theta), gradient(d_g), d_theta(Array(1, theta.cols, .5));
    cayley_neumann_backward<Exec, A>(this->exec_, this->gemm_, this->workspace_, s.k, packed.read_vector(),
                                     gradient.matrix(), true, d_theta.vector());
    const Array got = d_theta.get();
    constexpr double h = 1e-4;
    for (std::size_t i = 0; i < theta.cols; i += 1 + theta.cols / 50) {
      double difference = 0;
      for (const double side : {1.0, -1.0}) {
        Array moved = theta;
        moved.values[i] += side * h;
        const Array g = stacked(moved, s.blocks, s.b, s.k);
        for (std::size_t e = 0; e < g.values.size(); ++e) difference += side * g.values[e] * d_g.values[e];
      }
      // Error of a central difference h^2 times third derivatives of the order of 10, products of b terms in A.
      EXPECT_NEAR(got.values[i], .5 + difference / (2 * h), 1e-6 + 40 * static_cast<double>(s.b) * epsilon<A>)
          << s.blocks << " blocks of " << s.b << ", element " << i;
    }
  }
}

TYPED_TEST(CayleyNeumann, BlockProductsAreThoseOfTheDenseMatrix) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  const std::size_t n = 24, b = 8, rows = 13;
  const Array blocks = rounded<T>(random_array(n, b, 5)), x = rounded<T>(random_array(rows, n, 6)),
              y = rounded<T>(random_array(rows, n, 7)), dense = diagonal_of_blocks(blocks);
  const Field<T, Exec> g(blocks), left(x, 3), right(y), out(rows, n, 2), tall(transposed(x)), tall_out(n, rows);
  const double tolerance = 30 * (epsilon<T> + static_cast<double>(rows) * epsilon<Acc<T>>);  // sums of at most 13 terms
  times_blocks<Exec, T>(this->exec_, this->gemm_, left.read(), Op::none, g.read(), out.matrix());
  expect_close(out.get(), product(x, dense), tolerance, "x G");
  times_blocks<Exec, T>(this->exec_, this->gemm_, left.read(), Op::transpose, g.read(), out.matrix());
  expect_close(out.get(), product(x, transposed(dense)), tolerance, "x G^T");
  blocks_times<Exec, T>(this->gemm_, Op::transpose, g.read(), tall.read(), tall_out.matrix());
  expect_close(tall_out.get(), product(transposed(dense), transposed(x)), tolerance, "G^T x");
  const Field<Acc<T>, Exec> d(n, b);
  diagonal_blocks<Exec, T>(this->gemm_, left.read(), right.read(), false, d.matrix());
  const Array whole = product(transposed(x), y);
  Array want(n, b);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < b; ++j) want(i, j) = whole(i, i / b * b + j);
  expect_close(d.get(), want, tolerance, "blocks of x^T y");
}

// Two blocks at the beginning of two equal parts of a side: between them lies the identity.
TYPED_TEST(CayleyNeumann, ColumnsBetweenBlocksStayAsTheyAre) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  const std::size_t n = 22, apart = 11, b = 4, rows = 13;
  const Array blocks = rounded<T>(random_array(2 * b, b, 5)), x = rounded<T>(random_array(rows, n, 6)),
              y = rounded<T>(random_array(rows, n, 7));
  Array dense = identity(n);
  for (std::size_t k = 0; k < 2 * b; ++k)
    for (std::size_t j = 0; j < b; ++j) dense(k / b * apart + k % b, k / b * apart + j) = blocks(k, j);
  const Field<T, Exec> g(blocks), left(x, 3), right(y), out(rows, n, 2);
  const double tolerance = 30 * (epsilon<T> + static_cast<double>(rows) * epsilon<Acc<T>>);  // sums of at most 13 terms
  times_blocks<Exec, T>(this->exec_, this->gemm_, left.read(), Op::transpose, g.read(), out.matrix());
  const Array got = out.get();
  expect_close(got, product(x, transposed(dense)), tolerance, "x G^T");
  for (std::size_t j = 0; j < n; ++j)
    if (j % apart >= b) EXPECT_EQ(got(7, j), x(7, j)) << j;
  const Field<Acc<T>, Exec> d(2 * b, b);
  diagonal_blocks<Exec, T>(this->gemm_, left.read(), right.read(), false, d.matrix());
  const Array whole = product(transposed(x), y);
  Array want(2 * b, b);
  for (std::size_t k = 0; k < 2 * b; ++k)
    for (std::size_t j = 0; j < b; ++j) want(k, j) = whole(k / b * apart + k % b, k / b * apart + j);
  expect_close(d.get(), want, tolerance, "blocks of x^T y");
}

// Three chunks of rows, the last of them not full.
TYPED_TEST(CayleyNeumann, PermutedBlockProductsAreThoseOfMatrices) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  const std::size_t n = 24, b = 8, rows = 600;
  const Array blocks = rounded<T>(random_array(n, b, 5)), x = rounded<T>(random_array(rows, n, 6)),
              dense = diagonal_of_blocks(blocks);
  std::vector<int> order(n);
  Array move(n, n);  // x move: column j goes to order[j]
  for (std::size_t j = 0; j < n; ++j) {
    order[j] = static_cast<int>((7 * j + 5) % n);
    move(j, static_cast<std::size_t>(order[j])) = 1;
  }
  const Indices<Exec> index(order);
  const Field<T, Exec> g(blocks), left(x, 3), out(rows, n, 2), scratch(1, rows * n);
  const double tolerance = 30 * (epsilon<T> + static_cast<double>(b) * epsilon<Acc<T>>);  // sums of 8 terms
  put_times_blocks<Exec, T>(this->exec_, this->gemm_, left.read(), index.vector(), Op::transpose, g.read(),
                            scratch.vector(), out.matrix());
  expect_close(out.get(), product(product(x, move), transposed(dense)), tolerance, "x' G^T");
  const Array taken = product(product(x, dense), transposed(move));
  times_blocks_take<Exec, T>(this->exec_, this->gemm_, left.read(), Op::none, g.read(), index.vector(), false,
                             scratch.vector(), out.matrix());
  expect_close(out.get(), taken, tolerance, "z permuted");
  times_blocks_take<Exec, T>(this->exec_, this->gemm_, left.read(), Op::none, g.read(), index.vector(), true,
                             scratch.vector(), out.matrix());
  expect_close(out.get(), sum(taken, 1, taken), 2 * tolerance, "z permuted and added");
}

// Blocks of two sides that lie apart are those of each by itself.
TYPED_TEST(CayleyNeumann, OfBothSidesIsThatOfEach) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = Acc<T>;
  const std::size_t b = 8, rows = 5 * b;
  const Array left = rounded<A>(random_array(1, 2 * skew_elements(b), 5, 0, .1)),
              right = rounded<A>(random_array(1, 3 * skew_elements(b), 6, 0, .1));
  const Array first = this->forward({2, b, 1, 0}, left), second = this->forward({3, b, 1, 0}, right);
  Array both = first, d = rounded<A>(random_array(rows, b, 7));
  both.rows = rows;
  both.values.insert(both.values.end(), second.values.begin(), second.values.end());
  const Field<A, Exec> one(left), other(right), d_one(Array(1, left.cols, .5)), d_other(Array(1, right.cols, .5));
  const Field<T, Exec> g(rows, b);
  cayley_neumann<Exec, T>(this->exec_, this->gemm_, this->workspace_, 1, {one.read_vector(), other.read_vector()},
                          g.matrix());
  expect_same(g.get(), both, "G");

  const Field<A, Exec> gradient(d);
  cayley_neumann_backward<Exec, A>(this->exec_, this->gemm_, this->workspace_, 1,
                                   {one.read_vector(), other.read_vector()}, gradient.matrix(), true,
                                   {d_one.vector(), d_other.vector()});
  std::size_t row = 0;
  for (const bool is_first : {true, false}) {
    const Field<A, Exec>& theta = is_first ? one : other;
    const std::size_t n = (is_first ? 2 : 3) * b;
    Array part(n, b);
    for (std::size_t i = 0; i < n; ++i, ++row)
      for (std::size_t j = 0; j < b; ++j) part(i, j) = d(row, j);
    const Field<A, Exec> own(part), d_theta(Array(1, theta.get().cols, .5));
    cayley_neumann_backward<Exec, A>(this->exec_, this->gemm_, this->workspace_, 1, theta.read_vector(), own.matrix(),
                                     true, d_theta.vector());
    expect_same((is_first ? d_one : d_other).get(), d_theta.get(), is_first ? "first" : "second");
  }
}

// What a device does with small blocks: the blocks of two sides, each by a team.
TYPED_TEST(CayleyNeumann, ByTeamsIsTheSameForSmallBlocks) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = Acc<T>;
  for (const Size& s : {Size{1, 2, 1, .3}, Size{3, 17, 2, .05}, Size{2, block_series::largest, 1, .03}}) {
    const std::size_t rows = (s.blocks + 1) * s.b, each = skew_elements(s.b);
    const double terms = static_cast<double>(s.b) * epsilon<A>;
    const Array left = rounded<A>(random_array(1, s.blocks * each, 5, 0, s.length)),
                right = rounded<A>(random_array(1, each, 6, 0, s.length)), d = rounded<A>(random_array(rows, s.b, 7));
    Array both = left;
    both.cols += each;
    both.values.insert(both.values.end(), right.values.begin(), right.values.end());
    const Field<A, Exec> one(left), other(right), gradient(d);
    const PackedBlocks<Exec, const A> theta{one.read_vector(), other.read_vector()};
    const Field<T, Exec> g(rows, s.b);
    block_series::forward<Exec, T>(this->exec_, A(s.k), theta, g.matrix());
    expect_close(g.get(), stacked(both, s.blocks + 1, s.b, s.k), 2 * epsilon<T> + 8 * terms, "G");
    for (const bool accumulate : {false, true}) {
      const auto begun = [](const Array& x) { return Field<A, Exec>(Array(1, x.cols, .5)); };
      const Field<A, Exec> d_one = begun(left), d_other = begun(right), swept_one = begun(left),
                           swept_other = begun(right), used(d);
      block_series::backward<Exec, A>(this->exec_, A(s.k), theta, gradient.read(), accumulate,
                                      {d_one.vector(), d_other.vector()});
      cayley_neumann_backward<Exec, A>(this->exec_, this->gemm_, this->workspace_, s.k, theta, used.matrix(),
                                       accumulate, {swept_one.vector(), swept_other.vector()});
      // Sums of b terms of the order of 1, two deep, in another order.
      expect_close(d_one.get(), swept_one.get(), 40 * terms, "first");
      expect_close(d_other.get(), swept_other.get(), 40 * terms, "second");
    }
  }
}

// By blocks on one thread and on as many as divide their number, swept on others: both ways give the same bits.
TEST(CayleyNeumannThreads, DeterministicProductsGiveTheSameBits) {
  EXPECT_EQ(Gemm<Host>(Host(3)).lanes(), 3u);
  for (const std::size_t blocks : {3, 4}) {
    const Size s{blocks, 16, 1, .1};
    const Array theta = random_array(1, s.blocks * skew_elements(s.b), 8, 0, s.length),
                d = random_array(s.blocks * s.b, s.b, 9);
    expect_same_for_any_thread_count([&](const Host& exec) {
      Gemm<Host> gemm(exec, true);
      Workspace<Host> workspace(std::size_t{1} << 20);
      const Field<float, Host> packed(theta), g(s.blocks * s.b, s.b), gradient(d), d_theta(1, theta.cols);
      cayley_neumann<Host, float>(exec, gemm, workspace, s.k, packed.read_vector(), g.matrix());
      cayley_neumann_backward<Host, float>(exec, gemm, workspace, s.k, packed.read_vector(), gradient.matrix(), false,
                                           d_theta.vector());
      return std::vector<Array>{g.get(), d_theta.get()};
    });
  }
}

}  // namespace
}  // namespace sestina
