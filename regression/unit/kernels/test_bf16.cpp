#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/blas/exec.hpp"

namespace sestina {
namespace {

TEST(Bf16, KeepsItsOwnValues) {
  for (unsigned bits = 0; bits < 0x10000u; ++bits) {
    bf16 x;
    x.bits = static_cast<std::uint16_t>(bits);
    const float value = x;
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(float(bf16(value))));
    else
      EXPECT_EQ(bf16(value).bits, bits);
  }
}

TEST(Bf16, RoundsToNearestTiesToEven) {
  const float ulp = 1.0f / 128;  // of values in [1, 2)
  EXPECT_EQ(float(bf16(1.0f + 0.49f * ulp)), 1.0f);
  EXPECT_EQ(float(bf16(1.0f + 0.51f * ulp)), 1.0f + ulp);
  EXPECT_EQ(float(bf16(1.0f + 0.5f * ulp)), 1.0f);
  EXPECT_EQ(float(bf16(1.0f + 1.5f * ulp)), 1.0f + 2 * ulp);
  EXPECT_EQ(float(bf16(-1.0f - 1.5f * ulp)), -1.0f - 2 * ulp);
  EXPECT_EQ(float(bf16(2.0f - 0.25f * ulp)), 2.0f);
}

TEST(Bf16, KeepsInfinityAndNan) {
  using limits = std::numeric_limits<float>;
  EXPECT_EQ(float(bf16(limits::infinity())), limits::infinity());
  EXPECT_EQ(float(bf16(-limits::infinity())), -limits::infinity());
  EXPECT_EQ(float(bf16(limits::max())), limits::infinity());
  EXPECT_TRUE(std::isnan(float(bf16(limits::quiet_NaN()))));
  // A NaN whose payload lies in the lower half only: cutting it off would give infinity.
  EXPECT_TRUE(std::isnan(float(bf16(Kokkos::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace sestina
