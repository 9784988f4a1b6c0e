// How an operand of a matrix product is read. Apart from gemm.hpp, so that the twins for host libraries need no Kokkos.
#pragma once

namespace sestina {

enum class Op { none, transpose };

}  // namespace sestina
