// How a matrix product reads an operand. Separate from gemm.hpp, so that the twins for host libraries need no Kokkos.
#pragma once

namespace sestina {

enum class Op { none, transpose };

// Rows and columns of the output tiles of deterministic products on the host. It is a constant, so the bits do not
// depend on any size or thread count.
inline constexpr int product_tile = 256;

}  // namespace sestina
