// What bf16 leaves of a sum, in a byte next to it: bits 8 to 15 of the fp32 number, as a signed distance from the bf16
// number that it rounds to. Both together are off by 2^-16 of the number at most, bf16 alone by 2^-8. A byte of zero is
// the bf16 number itself. Nothing fences.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// x = the numbers that both stand for together.
template <class Exec>
void widen_with_residual(const Exec&, Vector<const bf16, Exec> values, Vector<const std::uint8_t, Exec> residual,
                         Vector<float, Exec> x);

// Element (i, j) of x to (rows[i], cols[j]) of values, rounded, and what is left to the same place of residual.
template <class Exec>
void put_with_residual(const Exec&, Matrix<const float, Exec> x, Vector<const std::int32_t, Exec> rows,
                       Vector<const std::int32_t, Exec> cols, Matrix<bf16, Exec> values,
                       Matrix<std::uint8_t, Exec> residual);

}  // namespace sestina
