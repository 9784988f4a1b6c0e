// How an operand of a matrix product is read. Apart from gemm.hpp, so that the twins for host libraries need no Kokkos.
#pragma once

namespace sestina {

enum class Op { none, transpose };

// Rows and columns of the output tiles of deterministic products on the host. The size depends on nothing, so neither
// do the bits.
inline constexpr int product_tile = 256;

}  // namespace sestina
