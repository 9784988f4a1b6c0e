// Element-wise passes of Adam in a rotated basis (SOAP, KL-SOAP, basis rotation) or in a low-rank one (GaLore, APOLLO),
// and of KL-Shampoo's scaling: each reads its arrays once. G is the gradient, M the momentum, V the second moment, D
// the direction. Matrices are contiguous. Nothing fences.
#pragma once
#include "kernels/blas/coded_moments.hpp"

namespace sestina {

struct AdamRule {
  double beta1 = 0.95, beta2 = 0.95, eps = 1e-8;
};

// Adds (1 - beta1) (scale G - M) to M.
template <class Space>
void average_momentum(const Space&, double beta1, double scale, Vector<const float, Space> gradient,
                      Vector<float, Space> momentum);

// Adds (1 - beta2) (G^2 - V) to V and divides D (n), the momentum in the basis of G and V, by sqrt(V) + eps.
template <class Space>
void rotated_adam(const Space&, const AdamRule&, Vector<const float, Space> gradient, Vector<float, Space> v,
                  Vector<float, Space> direction);

// rotated_adam in two halves, for a caller that needs V before the momentum is at hand.
template <class Space>
void average_squares(const Space&, double beta2, Vector<const float, Space> gradient, Vector<float, Space> v);
template <class Space>
void divide_by_root(const Space&, double eps, Vector<const float, Space> v, Vector<float, Space> direction);

// Adds (1 - beta1) (scale G - M) to M and (1 - beta2) ((scale G)^2 - V) to V; sets D = M / (sqrt(V) + eps). D must not
// overlap G.
template <class Space>
void adam_direction(const Space&, const AdamRule&, double scale, Vector<const float, Space> gradient,
                    Vector<float, Space> momentum, Vector<float, Space> v, Vector<float, Space> direction);

// Does the same with moments in 8 bits: D comes from them before they are rounded. G and D are row-major.
template <class Space>
void adam_direction(const Space&, const AdamRule&, double scale, Vector<const float, Space> gradient,
                    const CodedMoments<Space>&, Vector<float, Space> direction);

// Multiplies row i of X (m, n) by rows[i] and column j by cols[j]; either factor may be empty, which is 1.
template <class Space>
void scale_lines(const Space&, Vector<const float, Space> rows, Vector<const float, Space> cols,
                 Matrix<float, Space> x);

// Multiplies X_ij of X (m, n) by s / (1 + eps s) with s = rows[i] cols[j] (KL-Shampoo's damped inverse roots).
template <class Space>
void scale_damped(const Space&, double eps, Vector<const float, Space> rows, Vector<const float, Space> cols,
                  Matrix<float, Space> x);

// Sets X_ij = X_(rows[i], cols[j]); an empty order leaves that axis as it is. scratch (m, n).
template <class Space>
void permute(const Space&, Vector<const std::int32_t, Space> rows, Vector<const std::int32_t, Space> cols,
             Matrix<float, Space> x, Matrix<float, Space> scratch);

// scale_values multiplies x by a factor; fill_values sets it to a value.
template <class Space>
void scale_values(const Space&, double factor, Vector<float, Space> x);
template <class Space>
void fill_values(const Space&, double value, Vector<float, Space> x);

// Updates KL-Shampoo's eigenvalues: value += (1 - beta) (sample / count - value). A value whose inverse root would
// exceed `ceiling` is itself raised, so that it does not; a ceiling of 0 raises nothing.
template <class Space>
void average_eigenvalues(const Space&, double beta, double count, double ceiling, Vector<const float, Space> sample,
                         Vector<float, Space> values);
// Sets roots = values^-1/2, 0 where that is not finite.
template <class Space>
void inverse_square_roots(const Space&, Vector<const float, Space> values, Vector<float, Space> roots);

}  // namespace sestina
