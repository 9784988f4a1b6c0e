// Products and times on a device without a vendor twin of ours (HIP, SYCL, ...), through Kokkos alone.
#include "kernels/blas/gemm_kokkos.hpp"
#include "kernels/blas/stopwatch_kokkos.hpp"

namespace sestina {

SESTINA_KOKKOS_GEMM(Device)
template class Stopwatch<Device>;

}  // namespace sestina
