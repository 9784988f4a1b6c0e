// What GaLore and APOLLO share: a projector of one side, and Adam's moments of the projected gradient, which a refresh
// of the projector leaves as they are.
#pragma once
#include "core/optimizer/kinds/matrix_optimizer.hpp"
#include "core/optimizer/kinds/sides.hpp"
#include "core/optimizer/methods/two_sided.hpp"
#include "kernels/optimizer/rotated_adam.hpp"

namespace sestina {

template <class Space>
struct LowRankMoments {
  LowRankMoments(MatrixState<Space>& state, bool right)
      : right(right),
        projector(state.matrix("projector")),
        momentum(state.matrix("momentum")),
        second_moment(state.matrix("second_moment")) {}

  bool right;
  Matrix<float, Space> projector;  // (r, n) on the right, (m, r) on the left
  Matrix<float, Space> momentum, second_moment;

  // small = alpha G P^T, or alpha P^T G.
  void project(Lane<Space>& lane, float alpha, Matrix<const float, Space> gradient, Matrix<float, Space> small) const {
    if (right)
      multiply<Space>(lane, Op::none, Op::transpose, alpha, gradient, projector, 0, small);
    else
      multiply<Space>(lane, Op::transpose, Op::none, alpha, projector, gradient, 0, small);
  }
  // whole = small P, or P small.
  void project_back(Lane<Space>& lane, Matrix<const float, Space> small, Matrix<float, Space> whole) const {
    if (right)
      multiply<Space>(lane, Op::none, Op::none, 1, small, projector, 0, whole);
    else
      multiply<Space>(lane, Op::none, Op::none, 1, projector, small, 0, whole);
  }
  void adam(Lane<Space>& lane, const AdamRule& rule, Matrix<const float, Space> small,
            Matrix<float, Space> direction) const {
    adam_direction<Space>(lane.exec, rule, 1, flat<const float, Space>(small), flat<float, Space>(momentum),
                          flat<float, Space>(second_moment), flat<float, Space>(direction));
  }
};

}  // namespace sestina
