// Rotary position embedding in the rotate-half form of HF: the pair (i, i + h/2) of each head is rotated by the angle
// position * frequency_i. Row r of x is position r mod T.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// Turns x (N, heads*h) in place, heads = extent(1) / (2 * cosine.extent(1)); cosine, sine (>= T, h/2), T = sequence.
// The backward pass is the same turn with direction = -1.
template <class Exec, class T>
void rope(const Exec&, Matrix<const float, Exec> cosine, Matrix<const float, Exec> sine, int sequence, int direction,
          Matrix<T, Exec> x);

}  // namespace sestina
