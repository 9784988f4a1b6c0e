#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/base/thread_count.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/host/packed_product.hpp"
#include "kernels/blas/instruction_set.hpp"

namespace sestina {
namespace {

using host::GemmTypes;
using host::Product;
using host::VectorLevel;

constexpr VectorLevel vector_levels[] = {VectorLevel::any, VectorLevel::avx2, VectorLevel::avx512,
                                         VectorLevel::avx512_bf16, VectorLevel::amx};

// Numbers of all bits that bf16 has, so that sums are rounded.
template <class T>
std::vector<T> bf16_numbers(std::size_t count, unsigned seed) {
  std::vector<T> x(count);
  unsigned state = seed;
  for (T& v : x) {
    state = state * 1664525u + 1013904223u;
    v = T(bf16((static_cast<float>(state >> 8) - 8388608.0f) / 8388608.0f));
  }
  return x;
}

struct PackedCase {
  std::int64_t m, n, k;
  Op op_a = Op::none, op_b = Op::none;
  double alpha = 1, beta = 0;
  std::int64_t pad = 0;
};

Product packed_product_of(const PackedCase& c, GemmTypes types) {
  const std::int64_t a = c.op_a == Op::none ? c.k : c.m, b = c.op_b == Op::none ? c.n : c.k;
  return {types, c.op_a, c.op_b, c.beta, c.alpha != 1, c.m, c.n, c.k, a + c.pad, b + 2 * c.pad, c.n + 3 * c.pad};
}

// What C holds afterwards, padding and all. TA: float, or bf16.
template <class TC, class TA = bf16>
std::vector<TC> multiply_packed(const PackedCase& c, VectorLevel level, int threads) {
  const GemmTypes types = std::is_same_v<TA, float>  ? GemmTypes::f32
                          : std::is_same_v<TC, bf16> ? GemmTypes::bf16
                                                     : GemmTypes::bf16_to_f32;
  const Product p = packed_product_of(c, types);
  const auto a = bf16_numbers<TA>((c.op_a == Op::none ? c.m : c.k) * p.lda, 1),
             b = bf16_numbers<TA>((c.op_b == Op::none ? c.k : c.n) * p.ldb, 2);
  auto got = bf16_numbers<TC>(c.m * p.ldc, 3);
  const ThreadCount count(threads);
  host::PackedProducts products(level);
  products.run(p, {c.alpha, a.data(), b.data(), got.data()});
  return got;
}

// Products of two bf16 are exact in fp32; sums of k numbers below 1 err by at most eps times k times k, usually far
// less; then alpha, beta and the rounding of the result, whose size is at most k.
template <class TC, class TA = bf16>
void check_packed(const PackedCase& c, VectorLevel level) {
  const Product p = packed_product_of(c, GemmTypes::bf16);
  const auto a = bf16_numbers<TA>((c.op_a == Op::none ? c.m : c.k) * p.lda, 1),
             b = bf16_numbers<TA>((c.op_b == Op::none ? c.k : c.n) * p.ldb, 2);
  auto want = bf16_numbers<TC>(c.m * p.ldc, 3);
  gemm_plain(c.op_a, c.op_b, {std::size_t(c.m), std::size_t(c.n), std::size_t(c.k)}, c.alpha, a.data(), p.lda, b.data(),
             p.ldb, c.beta, want.data(), p.ldc);
  const auto got = multiply_packed<TC, TA>(c, level, 2);
  const double k = static_cast<double>(c.k), eps = std::numeric_limits<float>::epsilon(),
               result = std::is_same_v<TC, bf16> ? 1.0 / 256 : eps, allowed = 2 * (k * k * eps / 8 + (k + 1) * result);
  for (std::int64_t i = 0; i < c.m; ++i)
    for (std::int64_t j = 0; j < p.ldc; ++j)
      ASSERT_LE(std::abs(double(got[i * p.ldc + j]) - double(want[i * p.ldc + j])), j < c.n ? allowed : 0)
          << "row " << i << " col " << j << " of " << c.m << " x " << c.n << ", k " << c.k << ", level " << int(level);
}

TEST(PackedProduct, MatchesPlainProduct) {
  for (const VectorLevel level : vector_levels)
    for (const Op op_a : {Op::none, Op::transpose})
      for (const Op op_b : {Op::none, Op::transpose})
        for (const PackedCase& sizes :
             {PackedCase{1, 1, 1}, {7, 5, 3}, {8, 48, 8}, {9, 49, 257}, {37, 29, 53}, {130, 26, 600}})
          for (const double beta : {0.0, 1.0, -0.625}) {
            PackedCase c = sizes;
            c.op_a = op_a, c.op_b = op_b, c.beta = beta;
            check_packed<bf16>(c, level);
            c.alpha = -0.375, c.pad = 3;
            check_packed<bf16>(c, level);
            check_packed<float>(c, level);
            check_packed<float, float>(c, level);
          }
}

// More rows and columns than a block has, and more elements of k than a pass has.
TEST(PackedProduct, BlocksAndPassesMatchPlainProduct) {
  check_packed<float>({800, 790, 300, Op::none, Op::transpose, 1, 0.5}, VectorLevel::avx512);
  check_packed<bf16>({800, 790, 300, Op::transpose, Op::none, 2, 0.5}, VectorLevel::avx2);
  check_packed<bf16>({800, 790, 300, Op::none, Op::transpose, 1, 0.5}, VectorLevel::amx);
  check_packed<float>({800, 790, 300, Op::transpose, Op::none, 1, 1}, VectorLevel::avx512_bf16);
}

// C is not read when beta is 0.
TEST(PackedProduct, OverwritesWhatIsNoNumber) {
  const std::vector<bf16> a(8, bf16(1.0f)), b(8, bf16(2.0f));
  std::vector<float> c(1, std::numeric_limits<float>::quiet_NaN());
  host::PackedProducts().run({GemmTypes::bf16_to_f32, Op::none, Op::none, 0, false, 1, 1, 8, 8, 1, 1},
                             {1, a.data(), b.data(), c.data()});
  EXPECT_EQ(c[0], 16.0f);
}

// NaN and infinity reach the result.
TEST(PackedProduct, KeepsWhatIsNoNumber) {
  for (const VectorLevel level : vector_levels)
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<bf16> a(300, bf16(1.0f)), b(300, bf16(1.0f));
      a[299] = bf16(bad);
      std::vector<bf16> c(1);
      host::PackedProducts(level).run({GemmTypes::bf16, Op::none, Op::none, 0, false, 1, 1, 300, 300, 1, 1},
                                      {1, a.data(), b.data(), c.data()});
      EXPECT_EQ(std::isnan(static_cast<float>(c[0])), std::isnan(bad));
      EXPECT_FALSE(std::isfinite(static_cast<float>(c[0])));
    }
}

// The bits of an element depend on k alone: not on threads, on vectors (all of them with fused multiply-adds), nor on
// the rows and columns around it.
TEST(PackedProduct, BitsDependOnNothingButTheSum) {
  const PackedCase c{300, 200, 700, Op::none, Op::transpose, 0.75, 0.5};
  const auto one = multiply_packed<float>(c, VectorLevel::avx512, 1);
  for (const int threads : {2, 3, 5})
    EXPECT_EQ(multiply_packed<float>(c, VectorLevel::avx512, threads), one) << threads;
  if (host::wide_kernel(VectorLevel::avx512).cols != host::wide_kernel(VectorLevel::avx2).cols)
    EXPECT_EQ(multiply_packed<float>(c, VectorLevel::avx2, 1), one);
  PackedCase part = c;
  part.m = 100;  // operands have the same rows, so that these are the first of them
  const auto few = multiply_packed<float>(part, VectorLevel::avx512, 2);
  EXPECT_EQ(few, std::vector<float>(one.begin(), one.begin() + std::ptrdiff_t(few.size())));
}

// The same where bf16 is multiplied as such, and for a part that begins in the middle of the tiles of the whole.
TEST(PackedProduct, BitsDoNotDependOnTheTile) {
  const std::int64_t m = 150, n = 130, k = 333, row = 37, col = 53;
  const auto a = bf16_numbers<bf16>(m * k, 1), b = bf16_numbers<bf16>(n * k, 2);
  for (const VectorLevel level : vector_levels) {
    std::vector<float> whole(m * n), part(m * n);
    host::PackedProducts products(level);
    Product p{GemmTypes::bf16_to_f32, Op::none, Op::transpose, 0, false, m, n, k, k, k, n};
    const ThreadCount two(2);
    products.run(p, {1, a.data(), b.data(), whole.data()});
    p.m = m - row, p.n = n - col;
    const ThreadCount one(1);
    products.run(p, {1, a.data() + row * k, b.data() + col * k, part.data()});
    for (std::int64_t i = row; i < m; ++i)
      for (std::int64_t j = col; j < n; ++j)
        ASSERT_EQ(part[(i - row) * n + j - col], whole[i * n + j]) << i << ", " << j << ", level " << int(level);
  }
}

// What is multiplied as bf16 where the processor can, and AMX where the library may use it.
TEST(PackedProduct, TakesWhatTheProcessorHas) {
  EXPECT_FALSE(host::PackedProducts(VectorLevel::avx512).has_bf16());
  if (bf16_way() == Bf16Way::tiles) {
    ASSERT_TRUE(host::PackedProducts(VectorLevel::amx).has_bf16());
    EXPECT_EQ(host::bf16_kernel(VectorLevel::amx).a, host::Packing::rows);
  }
  if (bf16_way() == Bf16Way::dot_products) EXPECT_TRUE(host::PackedProducts(VectorLevel::avx512_bf16).has_bf16());
}

// Returns the seconds of a product of bf16 on one thread, the shortest of many.
double seconds_at(VectorLevel level) {
  constexpr std::int64_t n = 256;
  const std::vector<bf16> a(n * n, bf16(1.0f)), b(n * n, bf16(1.0f));
  std::vector<bf16> c(n * n);
  const Product product{GemmTypes::bf16, Op::none, Op::transpose, 0, false, n, n, n, n, n, n};
  host::PackedProducts products(level);
  const ThreadCount one(1);
  double best = 1e30;
  for (int i = 0; i < 20; ++i) {
    const double start = omp_get_wtime();
    products.run(product, {1, a.data(), b.data(), c.data()});
    best = std::min(best, omp_get_wtime() - start);
  }
  return best;
}

// Dot products of pairs have twice the speed of fp32 on some processors, and half of it on others. The bound leaves
// room for noise: the two ways are 1.25 times apart, or more, wherever both were seen.
TEST(Bf16Way, IsTheFasterOneWhereTheProcessorHasDotProducts) {
  if (!instruction_set().starts_with("avx512bf16")) GTEST_SKIP() << "no choice: AMX, or no dot products";
  const bool dots = bf16_way() == Bf16Way::dot_products;
  const double taken = seconds_at(dots ? VectorLevel::avx512_bf16 : VectorLevel::avx512),
               other = seconds_at(dots ? VectorLevel::avx512 : VectorLevel::avx512_bf16);
  EXPECT_LT(taken, 1.2 * other) << to_text(bf16_way());
}

// One way, which does not change, named like the instruction set that decides the bits.
TEST(Bf16Way, IsOneAndHasAName) {
  EXPECT_EQ(bf16_way(), bf16_way());
  const std::string set = instruction_set();
  EXPECT_EQ(set.find(to_text(bf16_way())) != set.npos, !has_bf16_products(bf16_way())) << set;
  EXPECT_EQ(to_text(Bf16Way::widened), "bf16 widened to fp32");
  EXPECT_EQ(to_text(Bf16Way::dot_products), "bf16 by AVX-512 dot products");
  // Where the library may use no more than AVX2 there is nothing else.
  const char* most = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (most != nullptr && std::string(most) == "AVX2") {
    EXPECT_EQ(bf16_way(), Bf16Way::widened);
    EXPECT_EQ(set, "avx2, bf16 widened to fp32");
  }
}

}  // namespace
}  // namespace sestina
