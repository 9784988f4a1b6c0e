// The drift of a basis from the eigenvectors of its factor, by which optimizer.refresh.every = "drift" decides.
#pragma once
#include "core/optimizer/base/matrix_optimizer.hpp"

namespace sestina {

// Sets drift (1) to ||offdiag(Q^T K Q)||_F / ||Q^T K Q||_F for a symmetric factor K and an orthogonal basis Q, both
// (d, d): 0 where the columns of Q are eigenvectors, at most 1; 0 for K = 0, infinite where K or Q is not finite. Does
// not fence on a device.
//
// One product is enough: with l_j = q_j^T K q_j, K Q - Q diag(l) = Q (Q^T K Q - diag(l)) has the norm of the
// off-diagonal part, without the cancellation of ||K||_F^2 - sum l_j^2.
template <class Space>
void basis_drift(Stream<Space>&, Matrix<const float, Space> factor, Matrix<const float, Space> basis,
                 Vector<double, Space> drift);
// Takes what it takes.
template <class Space>
void declare_basis_drift(Workspace<Space>&, std::size_t d);

}  // namespace sestina
