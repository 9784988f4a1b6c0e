// This file is compiled with -march=x86-64-v4, and therefore includes nothing whose functions others may share.
#include "kernels/blas/host/widened_tile.hpp"

namespace sestina::host {

TileKernel tile_kernel_avx512() { return {16 * 3, multiply_panels<16, 3, 8>}; }

}  // namespace sestina::host
