#include "kernels/blas/host/blas_cores.hpp"
#include "kernels/blas/host/widened_tile.hpp"

namespace sestina::host {

TileKernel tile_kernel(VectorLevel max) {
#if defined(__x86_64__)
  if (max >= VectorLevel::avx512 && has_avx512()) return tile_kernel_avx512();
  if (max >= VectorLevel::avx2 && has_avx2()) return tile_kernel_avx2();
#endif
  return {4 * 2, multiply_panels<4, 2, 4>};
}

}  // namespace sestina::host
