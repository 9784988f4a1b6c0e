// This file is compiled with -march=x86-64-v3, and therefore includes nothing whose functions others may share.
#include "kernels/blas/host/tile_kernel.hpp"

namespace sestina::host {

TileKernel wide_kernel_avx2() { return wide_kernel_of<8, 3, 4>(); }

}  // namespace sestina::host
