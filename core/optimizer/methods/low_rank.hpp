// What GaLore and APOLLO share: a projector of one side, and Adam's moments of the projected gradient, which a refresh
// of the projector leaves as they are.
#pragma once
#include <cmath>

#include "core/optimizer/kinds/matrix_optimizer.hpp"
#include "core/optimizer/kinds/sides.hpp"
#include "core/optimizer/methods/two_sided.hpp"
#include "kernels/optimizer/rotated_adam.hpp"

namespace sestina {

struct LowRankRule {
  AdamRule adam;
  double scale = 1;  // of the direction
  bool right = true;
  bool decay_first = false;
  bool given = false;  // the projector is not renewed
  std::int64_t refresh_every = 200;

  static LowRankRule read(const MatrixOptions& options, const MatrixShape& shape) {
    const LowRank low = low_rank_of(options, std::int64_t(shape.rows), std::int64_t(shape.cols));
    return {.adam = {options.number("beta1"), options.number("beta2"), options.number("eps")},
            .scale = options.number("scale"),
            .right = low.right,
            .decay_first = options.word("decay_order") == "before",
            .given = options.word("projector") == "given",
            .refresh_every = options.refresh_every};
  }
  // Of both moments, behind t updates.
  double bias_correction(std::int64_t t) const {
    const auto n = static_cast<double>(t);
    return std::sqrt(1 - std::pow(adam.beta2, n)) / (1 - std::pow(adam.beta1, n));
  }
};

template <class Space>
struct LowRankMoments {
  LowRankMoments(MatrixState<Space>& state, bool right, std::size_t block = 0)
      : right(right), projector(state.matrix("projector")) {
    if (!state.has("momentum_codes")) {
      momentum = state.matrix("momentum");
      second_moment = state.matrix("second_moment");
      rows = momentum.extent(0);
      cols = momentum.extent(1);
      return;
    }
    coded = {block, state.codes("momentum_codes"), state.codes("second_moment_codes"), state.matrix("momentum_scales"),
             state.matrix("second_moment_scales")};
    rows = coded.m.extent(0);
    cols = coded.m.extent(1);
  }

  bool right;
  Matrix<float, Space> projector;  // (r, n) on the right, (m, r) on the left
  std::size_t rows = 0, cols = 0;  // of the projected gradient
  Matrix<float, Space> momentum, second_moment;
  CodedMoments<Space> coded;  // in place of both, in 8 bits

  Matrix<float, Space> take_small(Lane<Space>& lane) const {  // in the lane's workspace
    return lane.workspace.template take<float>(rows, cols);
  }
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
    if (coded.block > 0)
      return adam_direction<Space>(lane.exec, rule, 1, flat<const float, Space>(small), coded,
                                   flat<float, Space>(direction));
    adam_direction<Space>(lane.exec, rule, 1, flat<const float, Space>(small), flat<float, Space>(momentum),
                          flat<float, Space>(second_moment), flat<float, Space>(direction));
  }
};

}  // namespace sestina
