#include "kernels/blas/host/widened_tile.hpp"

namespace sestina::host {

TileKernel tile_kernel(VectorLevel max) {
#if defined(__x86_64__)
  if (max >= VectorLevel::avx512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
    return tile_kernel_avx512();
  if (max >= VectorLevel::avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return tile_kernel_avx2();
#endif
  return {4 * 2, multiply_panels<4, 2, 4>};
}

}  // namespace sestina::host
