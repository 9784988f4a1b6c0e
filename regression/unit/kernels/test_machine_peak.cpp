#include <gtest/gtest.h>

#include "kernels/blas/machine_peak.hpp"

namespace sestina {
namespace {

TEST(MachinePeak, IsPlausible) {
  const MachinePeak peak = measure_machine_peak(Host());
  // Between a slow emulated core and the largest node there is.
  EXPECT_GT(peak.gemm_bf16_tflops, 1e-3);
  EXPECT_LT(peak.gemm_bf16_tflops, 1e4);
  EXPECT_GT(peak.gemm_fp32_tflops, 1e-3);
  EXPECT_LT(peak.gemm_fp32_tflops, 1e4);
  EXPECT_GT(peak.memory_gbs, 0.1);
  EXPECT_LT(peak.memory_gbs, 1e5);
}

}  // namespace
}  // namespace sestina
