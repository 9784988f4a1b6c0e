// Adam in the eigenbasis of the matrices that Shampoo would precondition with: the common body of SOAP (arXiv
// 2409.11321) and of basis rotation (arXiv 2602.03515), which differ in the order of their steps, in what the bases
// follow, and in the sides they rotate. The momentum is kept in the original basis and rotated when it is used, so that
// a late or missing refresh does no harm; the second moment lives in the rotated one and is permuted with the columns
// of the bases.
#pragma once
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/two_sided.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"

namespace sestina {

struct RotatedAdamRule {
  AdamRule adam;
  RefreshRule refresh;
  double factor_beta = 0.95;
  std::int64_t refresh_every = 10;
  bool skip_first = true;      // the first call only sets up bases and factors
  bool factors_first = false;  // factors and bases are updated before the step, not after it
  bool decay_first = false;
  bool bias_correction = true;
  bool factor_bias_correction = false;  // the factors are true means from the first update on
  bool normalize = false;               // the update is scaled to a root mean square of 1
  MatmulPrecision precision = MatmulPrecision::fp32;
  bool keep_rotated = false;   // the momentum is kept in the rotated basis too: memory for two products
  bool from_momentum = false;  // bases follow M M^T and M^T M; there are no factors
  bool release = false;        // basis rotation from momentum as its authors published it
};

template <class Space>
class RotatedUpdates;  // of many matrices together: rotated_updates.hpp

template <class Space>
class RotatedAdam : public MatrixOptimizer<Space> {
 public:
  RotatedAdam(const Space&, const MatrixOptions&, const RotatedAdamRule&, const MatrixShape&);

  void step(Stream<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>&) override;
  static void declare_update(Workspace<Space>&, const MatrixOptions&, const RotatedAdamRule&, std::size_t rows,
                             std::size_t cols);
  static RefreshNeeds refresh_needs(const MatrixOptions&, const RotatedAdamRule&, std::int64_t rows, std::int64_t cols);
  MatrixState<Space>& state() override { return state_; }
  bool repeats(const RefreshPolicy&) override;
  RefreshAges ages() const override { return sides_.ages(); }
  RefreshPort<Space>* port() override { return &sides_.port(); }

 private:
  friend class RotatedUpdates<Space>;
  bool start(Stream<Space>&, Matrix<const float, Space> gradient);
  void update_factors(Stream<Space>&, double gradient_scale, Matrix<const float, Space> gradient);
  bool refresh_is_due(const Stream<Space>&) const;
  void refresh(Stream<Space>&, bool due);
  // Computes Adam's direction in the rotated basis into move; scratch is used up.
  void rotated_direction(Stream<Space>&, Matrix<const float, Space> rotated, Matrix<float, Space> scratch,
                         Matrix<float, Space> move);
  // Returns the move along the direction of the update now made; normalisation is a factor by itself.
  WeightMove weight_move(const Stream<Space>&, const UpdateNumbers&) const;
  void update_weight(Stream<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>&);
  // Returns the direction of the update, in original coordinates, in one of three scratch matrices.
  Matrix<float, Space> direction(Stream<Space>&, double gradient_scale, Matrix<const float, Space> gradient);

  RotatedAdamRule rule_;
  MatrixShape shape_;
  MatrixState<Space> state_;
  TwoSided<Space> sides_;
  Matrix<float, Space> momentum_, second_moment_;
  std::int64_t &updates_, &started_;
};

// Makes bases from the momentum M: one power step with M M^T and M^T M, or the published rule. True: a new one is in
// place.
template <class Space>
bool refresh_from_momentum(Stream<Space>&, TwoSided<Space>&, const RotatedAdamRule&,
                           const typename TwoSided<Space>::Point&, Matrix<const float, Space> momentum,
                           Matrix<float, Space> second_moment);
template <class Space>
void declare_refresh_from_momentum(Workspace<Space>&, Sides, const RotatedAdamRule&, std::size_t rows,
                                   std::size_t cols);

// Returns the state: moments, factors where the bases follow them, bases, counters, jobs; keep_rotated as in the rule.
std::vector<FieldSize> rotated_fields(const MatrixOptions&, Sides, bool factors, bool keep_rotated, std::int64_t rows,
                                      std::int64_t cols);
// Returns what the rotations execute, per side of length a with the other one b in a^2 b: for gradient and update, and
// for the momentum where it is not kept rotated.
inline double rotation_products(bool keep_rotated) { return keep_rotated ? 4 : 6; }

}  // namespace sestina
