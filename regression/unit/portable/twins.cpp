// The twins that are written for any device, compiled for the host: this program's Gemm, Stopwatch and Solver are
// these. Solver on Serial stays LAPACK's, which its twin calls.
#include "kernels/blas/gemm_kokkos.hpp"
#include "kernels/blas/stopwatch_kokkos.hpp"
#include "kernels/optimizer/eigen_kokkos.hpp"

namespace sestina {

SESTINA_KOKKOS_GEMM(Host)
SESTINA_KOKKOS_GEMM(Serial)
SESTINA_KOKKOS_SOLVER(Host)
template class Stopwatch<Host>;

}  // namespace sestina
