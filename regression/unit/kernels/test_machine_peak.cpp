#include <gtest/gtest.h>

#include "kernels/blas/instruction_set.hpp"
#include "kernels/blas/machine_peak.hpp"

namespace sestina {
namespace {

TEST(MachinePeak, IsPlausible) {
  const MachinePeak peak = measure_machine_peak(Host());
  // Between a slow emulated core and the largest node there is.
  // A processor without products in bf16 has no peak of them, and computes them within that of fp32.
  ASSERT_EQ(peak.gemm_bf16_tflops.has_value(), has_bf16_products(bf16_way()));
  EXPECT_GT(peak.gemm_bf16_tflops.value_or(1), 1e-3);
  EXPECT_LT(peak.gemm_bf16_tflops.value_or(1), 1e4);
  EXPECT_EQ(peak.gemm_tflops(true), peak.gemm_bf16_tflops.value_or(peak.gemm_fp32_tflops));
  EXPECT_GT(peak.gemm_fp32_tflops, 1e-3);
  EXPECT_LT(peak.gemm_fp32_tflops, 1e4);
  EXPECT_GT(peak.memory_gbs, 0.1);
  EXPECT_LT(peak.memory_gbs, 1e5);
}

}  // namespace
}  // namespace sestina
