// The last pass of a matrix whose update is subject to rules (kernels/optimizer/update_rules.hpp, which has the
// formulas and their sources). The fused passes of the kinds go from the direction to the weight at once; here the
// update lies in memory by itself. Norms are summed in double in a fixed order and stay in the space: nothing fences.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/optimizer/update_rules.hpp"

namespace sestina {

struct ShapedMove {
  UpdateRules rules;
  double lr = 0, weight_decay = 0;
  double* nonfinite = nullptr;  // see kernels/optimizer/matrix_update.hpp
};

// Memory of shaped_move.
template <class Space>
struct ShapedMoveScratch {
  // Sums over the matrix: ||U||^2 and ||W||^2 before U is shaped, ||U||^2 after it; then the factors of the move.
  enum { unshaped, weight, update, keep, step, pin, brake, count };
  ShapedMoveScratch(Workspace<Space>& workspace, std::size_t rows)
      : sums(workspace.template take<double>(3, rows)),
        whole(workspace.template take<double>(count)),
        gains(workspace.template take<float>(rows)) {}
  Matrix<double, Space> sums;   // (3, m): ||u_i||^2, ||w_i||^2, <u_i, w_i>
  Vector<double, Space> whole;  // (count)
  Vector<float, Space> gains;   // (m): the factor of each row of U
};

// Moves master (m, n) by the update of which `movement` (m, n) is the negative: the movement of a kind at learning rate
// 1. weight (m, n), or (0, 0), receives the rounded copy.
template <class Space>
void shaped_move(const Space&, const ShapedMove&, Matrix<const float, Space> movement, Matrix<float, Space> master,
                 Matrix<bf16, Space> weight, Workspace<Space>&);

}  // namespace sestina
