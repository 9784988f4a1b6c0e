// Symmetric matrices as their lower triangle, row after row: d (d + 1) / 2 numbers. Packing and unpacking lose nothing.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

KOKKOS_INLINE_FUNCTION constexpr std::size_t packed_size(std::size_t d) { return d * (d + 1) / 2; }

// x (d, d) symmetric: its lower triangle is read. packed (d (d + 1) / 2).
template <class Exec>
void pack_symmetric(const Exec&, Matrix<const float, Exec> x, Vector<float, Exec> packed);
template <class Exec>
void unpack_symmetric(const Exec&, Vector<const float, Exec> packed, Matrix<float, Exec> x);

}  // namespace sestina
