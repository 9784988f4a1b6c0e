#include "kernels/blas/host/blas_cores.hpp"
#include "kernels/blas/host/tile_kernel.hpp"

namespace sestina::host {

TileKernel wide_kernel(VectorLevel max) {
#if defined(__x86_64__)
  if (max >= VectorLevel::avx512 && has_avx512()) return wide_kernel_avx512();
  if (max >= VectorLevel::avx2 && has_avx2()) return wide_kernel_avx2();
#endif
  return wide_kernel_of<4, 2, 4>();
}

TileKernel bf16_kernel(VectorLevel max) {
#if defined(__x86_64__)
  if (max >= VectorLevel::amx && has_avx512())
    if (const TileKernel tiles = bf16_kernel_amx(); tiles.run != nullptr) return tiles;
  if (max >= VectorLevel::avx512_bf16 && has_avx512()) return bf16_kernel_avx512bf16();
#endif
  return {};
}

}  // namespace sestina::host
