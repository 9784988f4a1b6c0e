// Rotations near the identity from skew-symmetric matrices, by the first terms of the Neumann series of the Cayley
// transform (POET-X, Qiu et al. 2026, section 3):
//   G = I + 2 Q + 2 Q^2 + 2 Q^3 + k Q^4,  Q = U - U^T.
// k = 1 as published: G^T G = (I - Q^4)^2, so singular values fall short of 1 by the fourth power of Q's. k = 2:
// G^T G = I + 4 Q^6 + 4 Q^8, two orders better at the same cost. The series is a polynomial: Q of any size has a value,
// but only ||Q|| well below 1 gives a rotation.
//
// A row of n / b blocks is kept packed: theta (n / b, b (b - 1) / 2) is the strict upper triangle U of each block, row
// by row; its blocks lie stacked in a matrix (n, b). On a host each thread takes a block from theta to G while it lies
// in its cache, where there are blocks enough; else, and on a device, all of them are swept by batches. The formulas
// are written once for both. Nothing fences.
#pragma once
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

constexpr std::size_t skew_elements(std::size_t b) { return b * (b - 1) / 2; }

// q (n, b) = U - U^T of each block of theta.
template <class Exec, class A>
void unpack_skew(const Exec&, Vector<const A, Exec> theta, Matrix<A, Exec> q);
// theta_ij = or += d_ij - d_ji for i < j: the gradient of theta from that of q.
template <class Exec, class A>
void pack_skew(const Exec&, Matrix<const A, Exec> d, bool accumulate, Vector<A, Exec> theta);

// Each of the two takes at most four pieces of n b elements of Acc<T> from the workspace.

// g (n, b) from theta, computed in Acc<T> and rounded once.
template <class Exec, class T>
void cayley_neumann(const Exec&, Gemm<Exec>&, Workspace<Exec>&, double k, Vector<const Acc<T>, Exec> theta,
                    Matrix<T, Exec> g);

// d_theta = or += the gradient of theta from d_g (n, b), which is used up:
//   N = d_G Q^T + Q^T d_G,  d_Q = 2 (d_G + N) + (2 d_G + k N) Q2^T + (2 Q^T + k Q2^T) N,  Q2 = Q Q.
template <class Exec, class A>
void cayley_neumann_backward(const Exec&, Gemm<Exec>&, Workspace<Exec>&, double k, Vector<const A, Exec> theta,
                             Matrix<A, Exec> d_g, bool accumulate, Vector<A, Exec> d_theta);

}  // namespace sestina
