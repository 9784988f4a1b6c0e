// Matrix optimizers on packed skew-symmetric matrices (TensorSpec::skew_block): Q = U - U^T (b, b), of which the strict
// upper triangle theta is trained.
//
// The gradient of theta_ij is dL/dQ_ij - dL/dQ_ji, so that unpacked it is G = dL/dQ - (dL/dQ)^T: twice the gradient of
// L on the space of skew matrices (in the product of Frobenius, which counts every theta twice). The kinds that are
// allowed do not ask for the size of G, but for their eps. The step of the kind is made on G and Q as on any matrix
// (b, b), with state (b, b), and of the matrix that comes out the skew part (X - X^T) / 2 is packed again. It is the
// skew matrix nearest to X, and as <G, D> = <G, (D - D^T) / 2> for every direction D, it goes downhill exactly as far
// to first order. What is left out is rounding, or what no rotation could follow:
//   - Momentum is linear in G, and skew. The polynomial of Newton-Schulz is odd, X (a I + b X^T X + c (X^T X)^2) =
//     a X - b X^3 + c X^5, and odd powers of a skew matrix are skew: Muon.
//   - G G^T = G^T G = -G^2: both factors are one matrix, and K^-p G K^-p is skew: Shampoo, and KL-Shampoo, whose
//     factors remain equal by induction.
//   - Adam in bases of both sides: with one basis B for both, B^T G B is skew, its second moment symmetric, and so the
//     update skew: SOAP, KL-SOAP, basis rotation. -G^2 has its eigenvalues in pairs, though, and the two sides may have
//     different bases of the plane of a pair; what this adds to the update is not skew in part.
// What scales rows alone or projects one side (NorMuon, one-sided bases, GaLore, APOLLO) treats Q_ij and Q_ji as two
// numbers, and AdaMuon divides the rounding on the diagonal of a skew direction by its own size, which makes it as
// large as the rest and changes the norm that it scales by: refused (MatrixKind::keeps_skew).
#pragma once
#include "core/optimizer/base/matrix_optimizer.hpp"

namespace sestina {

// One update of a packed matrix: gradient and master are (1, b (b - 1) / 2). Where the step is skew, theta moves by its
// upper triangle, rounded as any weight is: Q comes back from packing with the bits it went in with.
template <class Space>
void step_skew_block(Stream<Space>&, MatrixOptimizer<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>& packed,
                     std::size_t b);

// What it takes of a stream's workspace in addition to the step of a matrix (b, b).
template <class Space>
struct SkewScratch {
  SkewScratch(Workspace<Space>& workspace, std::size_t b)
      : gradient(workspace.template take<float>(b, b)), q(workspace.template take<float>(b, b)) {}
  Matrix<float, Space> gradient, q;
};

}  // namespace sestina
