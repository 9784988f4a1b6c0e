#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/blas/gemm.hpp"
#include "regression/unit/kernels/padded.hpp"

namespace sestina {
namespace {

template <class P>
class GemmTest : public testing::Test {};
TYPED_TEST_SUITE(GemmTest, ProductTypes);

struct Case {
  Op op_a, op_b;
  GemmShape shape;
  std::size_t pad;
  double alpha, beta;
};

// Inputs are below 1 in size: a sum of k terms, in any order, errs by at most k * eps * k (usually sqrt(k)); the result
// is then rounded to TC. Twice each allows for alpha, and for C being read at beta 1.
template <class TA, class TC>
double tolerance(std::size_t k) {
  const double sum = std::numeric_limits<Acc<TA>>::epsilon();
  const double result = std::is_same_v<TC, bf16> ? 1.0 / 256 : std::numeric_limits<Acc<TC>>::epsilon();
  return 2 * (double(k) * double(k) * sum + (double(k) + 1) * result);
}

template <class TA, class TC, class Exec>
void check(Gemm<Exec>& gemm, const Case& c) {
  const bool plain_a = c.op_a == Op::none, plain_b = c.op_b == Op::none;
  const auto [m, n, k] = c.shape;
  Padded<TA> a(plain_a ? m : k, plain_a ? k : m, c.pad, 1), b(plain_b ? k : n, plain_b ? n : k, 2 * c.pad, 2);
  Padded<TC> got(m, n, 3 * c.pad, 3);
  Padded<TC> want = got;
  if (c.beta == 0 && n > 0) got.data[0] = TC(std::numeric_limits<float>::quiet_NaN());  // what beta 0 must not read
  gemm.template operator()<TA, TC>(c.op_a, c.op_b, Acc<TA>(c.alpha), a.template view<const TA>(),
                                   b.template view<const TA>(), Acc<TA>(c.beta), got.template view<TC>());
  gemm_plain(c.op_a, c.op_b, c.shape, c.alpha, a.data.data(), a.stride, b.data.data(), b.stride, c.beta,
             want.data.data(), want.stride);
  const double allowed = tolerance<TA, TC>(k);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < got.stride; ++j) {
      const std::size_t at = i * got.stride + j;
      const double error = std::abs(double(got.data[at]) - double(want.data[at]));
      ASSERT_LE(error, j < n ? allowed : 0) << "row " << i << " col " << j << " of " << m << " x " << n << ", k " << k
                                            << ", ops " << int(c.op_a) << int(c.op_b) << ", pad " << c.pad;
    }
}

template <class TA, class TC, class Exec>
void check_all(Gemm<Exec>& gemm, GemmShape shape) {
  for (const Op op_a : {Op::none, Op::transpose})
    for (const Op op_b : {Op::none, Op::transpose})
      for (const std::size_t pad : {0, 5})
        for (const double beta : {0.0, 1.0, -0.625}) {
          check<TA, TC>(gemm, {op_a, op_b, shape, pad, 1.0, beta});
          check<TA, TC>(gemm, {op_a, op_b, shape, pad, -0.375, beta});
        }
}

TYPED_TEST(GemmTest, MatchesPlainProduct) {
  Gemm<Host> gemm{Host()};
  for (const GemmShape shape : {GemmShape{1, 1, 1}, {1, 17, 5}, {19, 1, 3}, {33, 47, 1}, {37, 29, 53}, {64, 32, 128}})
    check_all<typename TypeParam::TA, typename TypeParam::TC>(gemm, shape);
}

TYPED_TEST(GemmTest, DeterministicTilesMatchPlainProduct) {
  Gemm<Host> gemm(Host(), true);
  for (const GemmShape shape : {GemmShape{1, 1, 1}, {37, 29, 53}, {259, 515, 7}})
    check_all<typename TypeParam::TA, typename TypeParam::TC>(gemm, shape);
}

// Sides from 512 on, where oneDNN is asked for another implementation than its first.
TYPED_TEST(GemmTest, LargeSidesMatchPlainProduct) {
  Gemm<Host> gemm{Host()};
  for (const Op op_b : {Op::none, Op::transpose})
    check<typename TypeParam::TA, typename TypeParam::TC>(gemm, {Op::none, op_b, {21, 520, 515}, 1, -0.375, 1.0});
}

TYPED_TEST(GemmTest, OneThreadMatchesPlainProduct) {
  Gemm<Serial> gemm{Serial()};
  check_all<typename TypeParam::TA, typename TypeParam::TC>(gemm, {37, 29, 53});
}

// A A^T or A^T A added to a symmetric C, over sizes with one tile, a ragged edge, and many tiles.
template <class TA, class TC, class Exec>
std::vector<TC> symmetric_product(const Exec& exec, Op op, std::size_t m, std::size_t k, double beta) {
  Gemm<Exec> gemm(exec);
  const bool plain = op == Op::none;
  Padded<TA> a(plain ? m : k, plain ? k : m, 3, 1);
  Padded<TC> c(m, m, 5, 2);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < i; ++j) c.data[j * c.stride + i] = c.data[i * c.stride + j];
  Padded<TC> want = c;
  gemm.template symmetric<TA, TC>(op, Acc<TA>(0.75), a.template view<const TA>(), Acc<TA>(beta), c.template view<TC>());
  gemm_plain(op, plain ? Op::transpose : Op::none, {m, m, k}, 0.75, a.data.data(), a.stride, a.data.data(), a.stride,
             beta, want.data.data(), want.stride);
  for (std::size_t i = 0; i < m && !testing::Test::HasFailure(); ++i)
    for (std::size_t j = 0; j < c.stride; ++j) {
      const double got = double(c.data[i * c.stride + j]), expected = double(want.data[i * c.stride + j]);
      EXPECT_LE(std::abs(got - expected), (j < m ? tolerance<TA, TC>(k) : 0)) << i << " " << j << " of " << m;
      if (j < i) EXPECT_EQ(got, double(c.data[j * c.stride + i]));
    }
  return c.data;
}

TYPED_TEST(GemmTest, SymmetricMatchesPlainProductAndBitsDoNotDependOnThreads) {
  using TA = typename TypeParam::TA;
  using TC = typename TypeParam::TC;
  for (const Op op : {Op::none, Op::transpose})
    for (const double beta : {0.0, 1.0, -2.25})
      for (const std::size_t m : {1, 31, 128, 129, 193, 873}) {
        const auto all = symmetric_product<TA, TC>(Host(), op, m, 37, beta);
        const auto one = symmetric_product<TA, TC>(Serial(), op, m, 37, beta);
        EXPECT_EQ(std::memcmp(one.data(), all.data(), one.size() * sizeof(TC)), 0);
      }
  symmetric_product<TA, TC>(Host(), Op::none, 0, 5, 1);
  symmetric_product<TA, TC>(Host(), Op::none, 5, 0, 0.5);
}

TYPED_TEST(GemmTest, ZeroSizes) {
  using TA = typename TypeParam::TA;
  using TC = typename TypeParam::TC;
  for (const bool deterministic : {false, true}) {
    Gemm<Host> gemm(Host(), deterministic);
    for (const GemmShape shape : {GemmShape{0, 3, 2}, {3, 0, 2}, {3, 2, 0}, {0, 0, 0}})
      for (const double beta : {0.0, 1.0, 0.5}) check<TA, TC>(gemm, {Op::none, Op::transpose, shape, 2, 1.0, beta});
  }
}

// A weight gradient dy^T x in deterministic mode on so many threads of the host's.
template <class TA, class TC>
std::vector<TC> weight_gradient(int threads, GemmShape shape) {
  const Host exec(threads);
  Gemm<Host> gemm(exec, true);
  Padded<TA> dy(shape.k, shape.m, 0, 7), x(shape.k, shape.n, 0, 8);
  for (TA& v : dy.data) v = TA(float(v) * 1.2345f);  // so that sums are not exact
  Padded<TC> dw(shape.m, shape.n, 0, 9);
  gemm.operator()<TA, TC>(Op::transpose, Op::none, Acc<TA>(1), dy.template view<const TA>(),
                          x.template view<const TA>(), Acc<TA>(1), dw.template view<TC>());
  return dw.data;
}

TYPED_TEST(GemmTest, DeterministicBitsDoNotDependOnThreads) {
  using TA = typename TypeParam::TA;
  using TC = typename TypeParam::TC;
  for (const GemmShape shape : {GemmShape{700, 300, 2048}, {256, 256, 1000}, {77, 1025, 515}}) {
    const auto one = weight_gradient<TA, TC>(1, shape), all = weight_gradient<TA, TC>(threads_of(Host()), shape);
    EXPECT_EQ(std::memcmp(one.data(), all.data(), one.size() * sizeof(TC)), 0);
  }
}

// Products of columns of A and rows of B into columns of C, in one batch: with fixed tiles the bits of one after the
// other, on any number of threads, whether the batch fills them or not.
TYPED_TEST(GemmTest, BatchesAreTheirProducts) {
  using TA = typename TypeParam::TA;
  using TC = typename TypeParam::TC;
  const std::size_t m = 37, n = 29, k = 53;
  for (const std::size_t count : {1, 2, 3, 9})
    for (const double beta : {0.0, -0.625})
      for (const bool deterministic : {true, false})
        for (const int threads : {1, 2, 3}) {
          const Host exec(threads);
          Gemm<Host> gemm(exec, deterministic);
          Padded<TA> a(m, count * k, 3, 1), b(count * k, n, 2, 2);
          Padded<TC> got(m, count * n, 1, 3), want = got;
          const auto part = [](const auto& x, std::size_t rows, std::size_t cols) {
            return Kokkos::subview(x, std::pair(std::size_t{0}, rows), std::pair(std::size_t{0}, cols));
          };
          const auto advanced = [](auto x, std::size_t by) { return x.assign_data(x.data() + by), x; };
          const Matrix<const TA, Host> A = part(a.template view<const TA>(), m, k),
                                       B = part(b.template view<const TA>(), k, n);
          const Matrix<TC, Host> C = part(got.template view<TC>(), m, n), W = part(want.template view<TC>(), m, n);
          gemm.template batch<TA, TC>(count, {k, k * b.stride, n}, Op::none, Op::none, Acc<TA>(0.75), A, B,
                                      Acc<TA>(beta), C);
          EXPECT_EQ(gemm.take_count().flops, 2.0 * double(count * m * n * k));
          for (std::size_t i = 0; i < count; ++i)
            gemm.template operator()<TA, TC>(Op::none, Op::none, Acc<TA>(0.75), advanced(A, i * k),
                                             advanced(B, i * k * b.stride), Acc<TA>(beta), advanced(W, i * n));
          const double allowed = deterministic ? 0 : tolerance<TA, TC>(k);
          for (std::size_t i = 0; i < got.data.size(); ++i)
            ASSERT_LE(std::abs(double(got.data[i]) - double(want.data[i])), allowed) << count << ", " << threads;
        }
}

// Each item once, on a lane that nobody else has meanwhile, with products on one thread.
TEST(Gemm, ItemsTakeTurnsOnLanes) {
  const Host exec(3);
  Gemm<Host> gemm(exec);
  std::vector<int> done(8), busy(gemm.lanes());
  gemm.side_by_side(8, [&](Gemm<Serial>& products, std::size_t item, std::size_t lane) {
    ASSERT_LT(lane, busy.size());
    EXPECT_EQ(++busy[lane], 1);
    check<float, float>(products, {Op::none, Op::none, {10, 20, 30}, 0, 1.0, 0.0});
    ++done[item];
    --busy[lane];
  });
  EXPECT_EQ(done, std::vector<int>(8, 1));
  EXPECT_EQ(gemm.take_count().flops, 8 * 2.0 * 10 * 20 * 30);
}

// Logits: a result in bf16 so wide that a library may compute it in panels, against its halves. Sums of 512 products
// below 1, at most about 40, are rounded to bf16 once on either way.
TEST(Gemm, WideResultsInBf16AreThoseOfTheirHalves) {
  const Host exec(2);
  Gemm<Host> gemm(exec);
  const std::size_t m = 1024, n = 9000, k = 512, half = n / 2;
  for (const Op op : {Op::transpose, Op::none}) {
    const bool plain = op == Op::none;
    Padded<bf16> a(m, k, 0, 1), b(plain ? k : n, plain ? n : k, 3, 2), got(m, n, 5, 3), want = got;
    gemm.operator()<bf16, bf16>(Op::none, op, 1, a.view<const bf16>(), b.view<const bf16>(), 0, got.view<bf16>());
    for (const std::size_t begin : {std::size_t{0}, half}) {
      const std::pair range(begin, begin + half);
      const Matrix<const bf16, Host> part = plain ? Kokkos::subview(b.view<const bf16>(), Kokkos::ALL, range)
                                                  : Kokkos::subview(b.view<const bf16>(), range, Kokkos::ALL);
      gemm.operator()<bf16, bf16>(Op::none, op, 1, a.view<const bf16>(), part, 0,
                                  Kokkos::subview(want.view<bf16>(), Kokkos::ALL, range));
    }
    for (std::size_t i = 0; i < got.data.size(); ++i)
      ASSERT_LE(std::abs(float(got.data[i]) - float(want.data[i])), 64.0f / 256) << i;
  }
}

TEST(Gemm, CountsOperations) {
  Gemm<Host> gemm{Host()};
  gemm.time_products(true);
  check<float, float>(gemm, {Op::none, Op::none, {10, 20, 30}, 0, 1.0, 0.0});
  const auto count = gemm.take_count();
  EXPECT_EQ(count.flops, 2.0 * 10 * 20 * 30);
  EXPECT_GT(count.seconds, 0);
  EXPECT_EQ(gemm.take_count().flops, 0);
}

TEST(Gemm, RejectsWhatDoesNotFit) {
  Gemm<Host> gemm{Host()};
  Padded<float> a(3, 4, 0, 1), b(5, 6, 0, 2), c(3, 6, 0, 3);
  const auto multiply = [&](Op op_b, float beta) {
    gemm.operator()<float, float>(Op::none, op_b, 1, a.view<const float>(), b.view<const float>(), beta,
                                  c.view<float>());
  };
  EXPECT_THROW(multiply(Op::none, 0), Error);
  EXPECT_THROW(multiply(Op::transpose, 0), Error);
  b = Padded<float>(4, 6, 0, 2);
  EXPECT_NO_THROW(multiply(Op::none, 0));
}

}  // namespace
}  // namespace sestina
