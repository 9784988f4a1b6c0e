// Copies between small dense matrices of the kinds that bases need. Nothing fences.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// y = x, or its transpose.
template <class Space>
void copy_matrix(const Space&, bool transposed, Matrix<const float, Space> x, Matrix<float, Space> y);

// y (d, d): column j is column order[j] of x (d, e) for j < e, and zero beyond.
template <class Space>
void gather_columns(const Space&, Matrix<const float, Space> x, Vector<const std::int32_t, Space> order,
                    Matrix<float, Space> y);

// x (d, count): the first `count` columns of basis (d, d); transposed: x (count, d), as rows.
template <class Space>
void leading_columns(const Space&, Matrix<const float, Space> basis, bool transposed, Matrix<float, Space> x);

}  // namespace sestina
