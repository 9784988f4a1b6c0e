// The best that this machine can do, measured with the program's own products and loops: the bounds against which
// benchmarks print their results.
#pragma once
#include <optional>

#include "kernels/blas/exec.hpp"

namespace sestina {

struct MachinePeak {
  // TFLOP/s of products with inputs and result in bf16 and sums in fp32; none where the processor has no such products
  // (they are computed in fp32 there, whose peak is their bound).
  std::optional<double> gemm_bf16_tflops;
  double gemm_fp32_tflops = 0;
  double memory_gbs = 0;  // GB/s of a triad a = b + s c: two reads and one write per element, as counted by STREAM

  // Returns the bound of products in bf16, or in fp32.
  double gemm_tflops(bool bf16) const { return bf16 && gemm_bf16_tflops ? *gemm_bf16_tflops : gemm_fp32_tflops; }
};

// Measures the bounds in about a second; fences. It takes three vectors of four times the last-level cache (host) or of
// 256 MB each (device).
template <class Exec>
MachinePeak measure_machine_peak(const Exec& exec);

}  // namespace sestina
