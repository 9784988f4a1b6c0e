#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "kernels/base/random.hpp"

namespace sestina {
namespace {

TEST(Random, PhiloxGivesThePublishedNumbers) {
  // Known answers of Random123 (Salmon et al. 2011), philox4x32-10.
  EXPECT_EQ(philox(0, 0, 0), (Philox{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox(~0ull, ~0ull, ~0ull), (Philox{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox(0x299f31d0a4093822ull, 0x0370734413198a2eull, 0x85a308d3243f6a88ull),
            (Philox{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Random, StreamsDifferBySeedAndName) {
  std::set<std::uint64_t> streams;
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    for (const char* name : {"", "a", "b", "ab", "ba", "model.layers.0.mlp.up_proj.weight"})
      streams.insert(stream_of(seed, name));
  EXPECT_EQ(streams.size(), 300u);
}

TEST(Random, UniformFillsTheUnitInterval) {
  const std::uint64_t stream = stream_of(1, "uniform");
  std::vector<int> bins(20, 0);
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const double u = uniform(stream, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++bins[static_cast<std::size_t>(u * 20)];
  }
  for (const int count : bins) EXPECT_NEAR(count, 1000, 5 * std::sqrt(1000.0));  // five standard deviations
}

TEST(Random, NormalHasTheMomentsOfANormal) {
  const std::uint64_t stream = stream_of(1, "normal");
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0;
  constexpr int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double x = normal(stream, static_cast<std::uint64_t>(i));
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
    neighbours += x * normal(stream, static_cast<std::uint64_t>(i) + 1);
  }
  const double sigma = 5 / std::sqrt(n);  // five standard deviations of a mean of n
  EXPECT_NEAR(m1 / n, 0, sigma);
  EXPECT_NEAR(m2 / n, 1, sigma * std::sqrt(2.0));
  EXPECT_NEAR(m3 / n, 0, sigma * std::sqrt(15.0));
  EXPECT_NEAR(m4 / n, 3, sigma * std::sqrt(96.0));
  EXPECT_NEAR(neighbours / n, 0, sigma);
}

TEST(Random, RunsOfNormalsAreTheSameNumbers) {
  for (const std::uint64_t first : {0ull, 1ull, 7ull, 4096ull, (1ull << 40) + 3})
    for (const std::uint64_t count : {0ull, 1ull, 2ull, 5ull, 16ull}) {
      std::vector<double> run(count + 1, -99);
      normals(42, first, count, 0.5, run.data());
      for (std::uint64_t i = 0; i < count; ++i) EXPECT_EQ(run[i], 0.5 * normal(42, first + i));
      EXPECT_EQ(run[count], -99);
    }
}

TEST(Random, PermuteIsAPermutation) {
  for (const std::uint64_t n : {1ull, 2ull, 3ull, 10ull, 64ull, 65ull, 1000ull, 4097ull}) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t p = permute(9, i, n);
      EXPECT_LT(p, n);
      seen.insert(p);
    }
    EXPECT_EQ(seen.size(), n);
  }
  int fixed = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) fixed += permute(9, i, 1000) == i;
  EXPECT_LT(fixed, 10);  // one is expected
  EXPECT_NE(permute(9, 5, 1ull << 40), permute(10, 5, 1ull << 40));
}

}  // namespace
}  // namespace sestina
