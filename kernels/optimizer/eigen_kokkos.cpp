// Decompositions for a device without a vendor twin of ours.
#include "kernels/optimizer/eigen_kokkos.hpp"

namespace sestina {

SESTINA_KOKKOS_SOLVER(Device)

}  // namespace sestina
