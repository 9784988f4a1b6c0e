// What the processor can do, and which kernels OpenBLAS takes for it. Up to version 0.3.24 it takes an Intel processor
// that is newer than itself for one of 2004 (OpenMathLib/OpenBLAS#4267; 0.3.21 on Emerald Rapids: "Prescott"), whose
// kernels are slow and, in fp32, read what products in fp64 left in its buffers, so that decompositions now and then
// end without a result. No Kokkos.
#pragma once
#include <string_view>

namespace sestina::host {

bool has_avx2();    // the processor has the instructions of x86-64-v3 that kernels for AVX2 need
bool has_avx512();  // the same for AVX-512

// Whether dot products of pairs in bf16, where the processor has them, are faster than fp32 (see bf16_way).
bool has_fast_dot_products();

// True for the kernels of processors without AVX, by the name that OpenBLAS gives them.
bool is_core_without_avx(std::string_view name);

// Starts this program again with OPENBLAS_CORETYPE where OpenBLAS took kernels without AVX on a processor with AVX2 and
// the user named none: OpenBLAS chooses before main() begins and once. To be called first in main(), since nothing of
// this process is left. Where the program cannot be started again, it goes on as it is.
void require_blas_cores(char** argv);

}  // namespace sestina::host
