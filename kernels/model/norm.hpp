// RMSNorm and LayerNorm, both ways, with the residual addition fused in: each reads and writes memory once. N rows of
// width G*D are G independent groups of D each (G > 1: the per-head norm of Qwen3). Statistics are in Acc<T>. RMSNorm
// is y = x * inv_rms * weight, inv_rms = (mean(x^2) + eps)^-1/2 (Zhang & Sennrich 2019).
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/blas/rows.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// Computes y (N, G*D) with weight (D); keeps inv_rms (N*G) for the backward pass. x and y may be the same view.
template <class Exec, class T>
void rms_norm(const Exec&, Matrix<const T, Exec> x, Vector<const Acc<T>, Exec> weight, double eps, Matrix<T, Exec> y,
              Vector<Acc<T>, Exec> inv_rms);

// Computes sum = x + branch, y = rms_norm(sum): the residual addition before a norm. sum may be x. G = 1.
template <class Exec, class T>
void add_rms_norm(const Exec&, Matrix<const T, Exec> x, Matrix<const T, Exec> branch, Vector<const Acc<T>, Exec> weight,
                  double eps, Matrix<T, Exec> sum, Matrix<T, Exec> y, Vector<Acc<T>, Exec> inv_rms);

// Sets dx to the gradient through the norm of dy, plus `residual` when it is not empty (the gradient that bypasses the
// norm), and gives the own part to dweight, summed over fixed chunks of rows in a fixed order. dx may be dy or
// residual. Without rows dweight stays as it is. Workspace: RowSumScratch.
template <class Exec, class T>
void rms_norm_backward(const Exec&, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                       Vector<const Acc<T>, Exec> weight, Vector<const Acc<T>, Exec> inv_rms,
                       Matrix<const T, Exec> residual, Matrix<T, Exec> dx, RowTotal<Acc<T>, Exec> dweight,
                       Workspace<Exec>&);

// RMSNorm without a weight, y = x * inv_rms, over groups of `width` columns (N, G*width). With a branch sum = x +
// branch is normalised, which may be x; without one sum is not written. x and y may be the same view.
template <class Exec, class T>
void gainless_rms_norm(const Exec&, Matrix<const T, Exec> x, Matrix<const T, Exec> branch, std::int64_t width,
                       double eps, Matrix<T, Exec> sum, Matrix<T, Exec> y, Vector<Acc<T>, Exec> inv_rms);
// Sets dx as rms_norm_backward does.
template <class Exec, class T>
void gainless_rms_norm_backward(const Exec&, Matrix<const T, Exec> dy, Matrix<const T, Exec> x, std::int64_t width,
                                Vector<const Acc<T>, Exec> inv_rms, Matrix<const T, Exec> residual, Matrix<T, Exec> dx);

// Computes sum = x + branch (no norm): the last residual addition of a stage. sum may be x.
template <class Exec, class T>
void add(const Exec&, Matrix<const T, Exec> x, Matrix<const T, Exec> branch, Matrix<T, Exec> sum);

// Computes LayerNorm with bias (gpt): y = (x - mean) * inv_std * weight + bias; G = 1. branch may be empty (then sum is
// not written and the input is x itself).
template <class Exec, class T>
void add_layer_norm(const Exec&, Matrix<const T, Exec> x, Matrix<const T, Exec> branch,
                    Vector<const Acc<T>, Exec> weight, Vector<const Acc<T>, Exec> bias, double eps, Matrix<T, Exec> sum,
                    Matrix<T, Exec> y, Vector<Acc<T>, Exec> mean, Vector<Acc<T>, Exec> inv_std);
// Takes a NormScratch from the workspace.
template <class Exec, class T>
void layer_norm_backward(const Exec&, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                         Vector<const Acc<T>, Exec> weight, Vector<const Acc<T>, Exec> mean,
                         Vector<const Acc<T>, Exec> inv_std, Matrix<const T, Exec> residual, Matrix<T, Exec> dx,
                         RowTotal<Acc<T>, Exec> dweight, RowTotal<Acc<T>, Exec> dbias, Workspace<Exec>&);

// Memory that a backward pass takes at most, for n rows and groups of width d: the sums of two gradients.
template <class Exec, class T>
struct NormScratch {
  NormScratch(Workspace<Exec>& workspace, std::size_t n, std::size_t d)
      : weight(workspace, n, d), bias(workspace, n, d) {}
  RowSumScratch<Exec, Acc<T>> weight, bias;
};

// RMSNorm over rows whose columns lie on several ranks (OLMo-2's norm of q and k over all heads). A row needs one sum
// each way from all ranks; the caller sums it over the ranks between the two kernels. All else is as above.

// Sets squares(r) = share * sum_j x(r, j)^2. share is 0 on ranks that hold columns that another rank counts already.
template <class Exec, class T>
void split_row_squares(const Exec&, Matrix<const T, Exec> x, Acc<T> share, Vector<Acc<T>, Exec> squares);

// Computes y (N, D) = x * inv_rms * weight with squares (N) summed over all ranks and `width` columns in all.
template <class Exec, class T>
void split_rms_norm(const Exec&, Matrix<const T, Exec> x, Vector<const Acc<T>, Exec> weight,
                    Vector<const Acc<T>, Exec> squares, std::int64_t width, double eps, Matrix<T, Exec> y,
                    Vector<Acc<T>, Exec> inv_rms);

// Sets along(r) = sum_j dy(r, j) weight(j) x(r, j).
template <class Exec, class T>
void row_products(const Exec&, Matrix<const T, Exec> dy, Matrix<const T, Exec> x, Vector<const Acc<T>, Exec> weight,
                  Vector<Acc<T>, Exec> along);

// Computes dx (N, D) = dy * inv_rms * weight - share * along / width * inv_rms^3 x, with along (N) summed over all
// ranks, and adds the own part to dweight (D). dx may be dy. Where several ranks hold a column, dy is each one's part
// of the gradient, share is 1 on one of them and 0 on the others, and their dx add up to the gradient. Workspace:
// RowSumScratch.
template <class Exec, class T>
void split_rms_norm_backward(const Exec&, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                             Vector<const Acc<T>, Exec> weight, Vector<const Acc<T>, Exec> inv_rms,
                             Vector<const Acc<T>, Exec> along, std::int64_t width, Acc<T> share, Matrix<T, Exec> dx,
                             RowTotal<Acc<T>, Exec> dweight, Workspace<Exec>&);

}  // namespace sestina
