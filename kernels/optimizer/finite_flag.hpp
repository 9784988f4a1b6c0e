// The flag that update kernels raise next to the weights they write. It is a double in the memory of the space, so that
// it travels with the sums of squares (core/optimizer/gradient_norm.hpp): no message and no host wait of its own.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// Sets *flag to 1 when one of n values is not finite. For the values that the calling thread has just written, which
// still lie in its nearest cache. flag null: nobody asks.
template <class S>
KOKKOS_INLINE_FUNCTION void flag_nonfinite(std::size_t n, const S* values, double* flag) {
  if (flag == nullptr) return;
  int bad = 0;
  for (std::size_t i = 0; i < n; ++i) bad |= values[i] - values[i] != 0 ? 1 : 0;  // inf - inf is no number
  if (bad != 0) Kokkos::atomic_store(flag, 1.0);
}

}  // namespace sestina
