#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/base/thread_count.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/host/widened_product.hpp"
#include "kernels/blas/instruction_set.hpp"

namespace sestina {
namespace {

using host::GemmTypes;
using host::Product;
using host::VectorLevel;

constexpr VectorLevel vector_levels[] = {VectorLevel::any, VectorLevel::avx2, VectorLevel::avx512};

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

struct WidenedCase {
  std::int64_t m, n, k;
  Op op_a = Op::none, op_b = Op::none;
  double alpha = 1, beta = 0;
  std::int64_t pad = 0;
};

Product widened_product_of(const WidenedCase& c, GemmTypes types) {
  const std::int64_t a = c.op_a == Op::none ? c.k : c.m, b = c.op_b == Op::none ? c.n : c.k;
  return {types, c.op_a, c.op_b, c.beta, c.alpha != 1, c.m, c.n, c.k, a + c.pad, b + 2 * c.pad, c.n + 3 * c.pad};
}

// What C holds afterwards, padding and all.
template <class TC>
std::vector<TC> multiply_widened(const WidenedCase& c, VectorLevel level, int threads) {
  const Product p = widened_product_of(c, std::is_same_v<TC, bf16> ? GemmTypes::bf16 : GemmTypes::bf16_to_f32);
  const auto a = bf16_numbers<bf16>((c.op_a == Op::none ? c.m : c.k) * p.lda, 1),
             b = bf16_numbers<bf16>((c.op_b == Op::none ? c.k : c.n) * p.ldb, 2);
  auto got = bf16_numbers<TC>(c.m * p.ldc, 3);
  const ThreadCount count(threads);
  host::WidenedProducts products(level);
  products.run(p, {c.alpha, a.data(), b.data(), got.data()});
  return got;
}

// Products of two bf16 are exact in fp32; sums of k numbers below 1 err by at most eps times k times k, usually far
// less; then alpha, beta and the rounding of the result, whose size is at most k.
template <class TC>
void check_widened(const WidenedCase& c, VectorLevel level) {
  const Product p = widened_product_of(c, GemmTypes::bf16);
  const auto a = bf16_numbers<bf16>((c.op_a == Op::none ? c.m : c.k) * p.lda, 1),
             b = bf16_numbers<bf16>((c.op_b == Op::none ? c.k : c.n) * p.ldb, 2);
  auto want = bf16_numbers<TC>(c.m * p.ldc, 3);
  gemm_plain(c.op_a, c.op_b, {std::size_t(c.m), std::size_t(c.n), std::size_t(c.k)}, c.alpha, a.data(), p.lda, b.data(),
             p.ldb, c.beta, want.data(), p.ldc);
  const auto got = multiply_widened<TC>(c, level, 2);
  const double k = static_cast<double>(c.k), eps = std::numeric_limits<float>::epsilon(),
               result = std::is_same_v<TC, bf16> ? 1.0 / 256 : eps, allowed = 2 * (k * k * eps / 8 + (k + 1) * result);
  for (std::int64_t i = 0; i < c.m; ++i)
    for (std::int64_t j = 0; j < p.ldc; ++j)
      ASSERT_LE(std::abs(double(got[i * p.ldc + j]) - double(want[i * p.ldc + j])), j < c.n ? allowed : 0)
          << "row " << i << " col " << j << " of " << c.m << " x " << c.n << ", k " << c.k << ", level " << int(level);
}

TEST(WidenedProduct, MatchesPlainProduct) {
  for (const VectorLevel level : vector_levels)
    for (const Op op_a : {Op::none, Op::transpose})
      for (const Op op_b : {Op::none, Op::transpose})
        for (const WidenedCase& sizes :
             {WidenedCase{1, 1, 1}, {7, 5, 3}, {8, 48, 8}, {9, 49, 257}, {37, 29, 53}, {130, 26, 600}})
          for (const double beta : {0.0, 1.0, -0.625}) {
            WidenedCase c = sizes;
            c.op_a = op_a, c.op_b = op_b, c.beta = beta;
            check_widened<bf16>(c, level);
            c.alpha = -0.375, c.pad = 3;
            check_widened<bf16>(c, level);
            check_widened<float>(c, level);
          }
}

// More rows and columns than a block has, and more elements of k than a pass has.
TEST(WidenedProduct, BlocksAndPassesMatchPlainProduct) {
  check_widened<float>({800, 790, 300, Op::none, Op::transpose, 1, 0.5}, VectorLevel::avx512);
  check_widened<bf16>({800, 790, 300, Op::transpose, Op::none, 2, 0.5}, VectorLevel::avx2);
}

// C is not read when beta is 0.
TEST(WidenedProduct, OverwritesWhatIsNoNumber) {
  const std::vector<bf16> a(8, bf16(1.0f)), b(8, bf16(2.0f));
  std::vector<float> c(1, std::numeric_limits<float>::quiet_NaN());
  host::WidenedProducts().run({GemmTypes::bf16_to_f32, Op::none, Op::none, 0, false, 1, 1, 8, 8, 1, 1},
                              {1, a.data(), b.data(), c.data()});
  EXPECT_EQ(c[0], 16.0f);
}

// NaN and infinity reach the result.
TEST(WidenedProduct, KeepsWhatIsNoNumber) {
  for (const VectorLevel level : vector_levels)
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<bf16> a(300, bf16(1.0f)), b(300, bf16(1.0f));
      a[299] = bf16(bad);
      std::vector<bf16> c(1);
      host::WidenedProducts(level).run({GemmTypes::bf16, Op::none, Op::none, 0, false, 1, 1, 300, 300, 1, 1},
                                       {1, a.data(), b.data(), c.data()});
      EXPECT_EQ(std::isnan(static_cast<float>(c[0])), std::isnan(bad));
      EXPECT_FALSE(std::isfinite(static_cast<float>(c[0])));
    }
}

// The bits of an element depend on k alone: not on threads, on vectors (all of them with fused multiply-adds), nor on
// the rows and columns around it.
TEST(WidenedProduct, BitsDependOnNothingButTheSum) {
  const WidenedCase c{300, 200, 700, Op::none, Op::transpose, 0.75, 0.5};
  const auto one = multiply_widened<float>(c, VectorLevel::avx512, 1);
  for (const int threads : {2, 3, 5})
    EXPECT_EQ(multiply_widened<float>(c, VectorLevel::avx512, threads), one) << threads;
  if (host::tile_kernel(VectorLevel::avx512).cols != host::tile_kernel(VectorLevel::avx2).cols)
    EXPECT_EQ(multiply_widened<float>(c, VectorLevel::avx2, 1), one);
  WidenedCase part = c;
  part.m = 100;  // operands have the same rows, so that these are the first of them
  const auto few = multiply_widened<float>(part, VectorLevel::avx512, 2);
  EXPECT_EQ(few, std::vector<float>(one.begin(), one.begin() + std::ptrdiff_t(few.size())));
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
