// RMSNorm over rows whose columns lie on several ranks (OLMo-2's norm of q and k over all heads). What a row needs from
// all ranks is one sum each way; the caller sums it over the ranks between the two kernels. As in norm.hpp otherwise.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// squares(r) = share * sum_j x(r, j)^2. share: 0 on ranks that hold columns another rank counts already.
template <class Exec, class T>
void row_squares(const Exec&, Matrix<const T, Exec> x, Acc<T> share, Vector<Acc<T>, Exec> squares);

// y (N, D) = x * inv_rms * weight with squares (N) summed over all ranks and `width` columns in all.
template <class Exec, class T>
void split_rms_norm(const Exec&, Matrix<const T, Exec> x, Vector<const Acc<T>, Exec> weight,
                    Vector<const Acc<T>, Exec> squares, std::int64_t width, double eps, Matrix<T, Exec> y,
                    Vector<Acc<T>, Exec> inv_rms);

// along(r) = sum_j dy(r, j) weight(j) x(r, j).
template <class Exec, class T>
void row_products(const Exec&, Matrix<const T, Exec> dy, Matrix<const T, Exec> x, Vector<const Acc<T>, Exec> weight,
                  Vector<Acc<T>, Exec> along);

// dx (N, D) = dy * inv_rms * weight - share * along / width * inv_rms^3 x, with along (N) summed over all ranks;
// dweight (D) += its part. dx may be dy. Columns that several ranks hold: dy is each one's part of the gradient, share
// is 1 on one of them and 0 on the others, and their dx add up to the gradient. Workspace: RowSumScratch.
template <class Exec, class T>
void split_rms_norm_backward(const Exec&, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                             Vector<const Acc<T>, Exec> weight, Vector<const Acc<T>, Exec> inv_rms,
                             Vector<const Acc<T>, Exec> along, std::int64_t width, Acc<T> share, Matrix<T, Exec> dx,
                             Vector<Acc<T>, Exec> dweight, Workspace<Exec>&);

}  // namespace sestina
