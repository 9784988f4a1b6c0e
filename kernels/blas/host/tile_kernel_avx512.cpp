// This file is compiled with -march=x86-64-v4, and therefore includes nothing whose functions others may share.
#include "kernels/blas/host/tile_kernel.hpp"

namespace sestina::host {

TileKernel wide_kernel_avx512() { return wide_kernel_of<16, 3, 8>(); }

}  // namespace sestina::host
