// This file is compiled with -march=x86-64-v3, and therefore includes nothing whose functions others may share.
#include "kernels/blas/host/widened_tile.hpp"

namespace sestina::host {

TileKernel tile_kernel_avx2() { return {8 * 3, multiply_panels<8, 3, 4>}; }

}  // namespace sestina::host
