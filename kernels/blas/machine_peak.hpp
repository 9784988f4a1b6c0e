// What this machine can do at best, measured with the program's own products and loops: the bounds that benchmarks
// print their results against.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

struct MachinePeak {
  double gemm_bf16_tflops = 0;  // bf16 inputs and result, fp32 sums
  double gemm_fp32_tflops = 0;
  double memory_gbs = 0;  // GB/s of a triad a = b + s c: two reads and one write per element, as counted by STREAM
};

// Takes about a second; fences. Memory: three vectors of four times the last-level cache (host), 256 MB each (device).
template <class Exec>
MachinePeak measure_machine_peak(const Exec& exec);

}  // namespace sestina
