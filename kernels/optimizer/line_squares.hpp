// Sums of squares along the rows or the columns of a matrix, in a fixed order: the bits depend on neither threads nor,
// on the host, the space. Nothing fences.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// sums (m): sum over j of (X_ij weights_j)^2; weights (n) or empty, which is 1. X (m, n).
template <class Space>
void row_squares(const Space&, Matrix<const float, Space> x, Vector<const float, Space> weights,
                 Vector<float, Space> sums);

// sums (n): sum over i of (X_ij weights_i)^2; weights (m) or empty. Chunks of rows are summed apart.
template <class Space>
void column_squares(const Space&, Matrix<const float, Space> x, Vector<const float, Space> weights,
                    Vector<float, Space> sums, Workspace<Space>&);
template <class Space>
struct ColumnSquaresScratch {
  static constexpr std::size_t chunk = 64;  // rows that one thread adds up
  ColumnSquaresScratch(Workspace<Space>& workspace, std::size_t rows, std::size_t cols)
      : partial(workspace.template take<float>((rows + chunk - 1) / chunk, cols)) {}
  Matrix<float, Space> partial;  // (chunks, n): the sum of each chunk
};

}  // namespace sestina
