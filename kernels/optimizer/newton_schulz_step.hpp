// One step of Newton-Schulz iteration, as a table of them is written down. No Kokkos.
#pragma once

namespace sestina {

// X = a X + b (X X^T) X + c (X X^T)^2 X: every singular value x becomes a x + b x^3 + c x^5. c = 0: a cubic step.
struct NewtonSchulzStep {
  double a = 0, b = 0, c = 0;
};

// What a matrix is divided by at first, so that its singular values are at most 1: its Frobenius norm, which is kept
// from zero by the larger of norm and eps, or by norm + eps.
enum class NewtonSchulzNorm { max, add };

}  // namespace sestina
