// Softmax cross-entropy with its gradient in one call, in place, and the token embedding. Sums in Acc<T>. Shapes: N or
// R rows (tokens), V vocabulary, D hidden.
#pragma once
#include <span>

#include "kernels/blas/exec.hpp"

namespace sestina {

// A smooth bound of logits; bound 0: none. Of a logit x, tanh makes z = bound tanh(x / bound), whose slope is
// 1 - (z / bound)^2 (Gemma 2, arXiv 2408.00118); root makes z = bound x (x^2 + bound^2)^-1/2, whose slope is
// (1 - (z / bound)^2)^3/2 (modded-nanogpt).
struct SoftCap {
  double bound = 0;
  enum class Form { tanh, root } form = Form::tanh;
};
// Bounds logits in place.
template <class Exec, class T>
void soft_cap(const Exec&, SoftCap, Matrix<T, Exec> logits);

// Computes for each row r of logits (R, V): loss(r) = log sum exp(logits(r,:)) - logits(r, target(r)), 0 where
// target(r) < 0. With want_gradient, logits(r, j) becomes gradient_scale * (softmax_j - [j == target(r)]) (0 where
// target(r) < 0), times the slope of the bound where the logits have been bounded.
template <class Exec, class T>
void softmax_cross_entropy(const Exec&, Vector<const std::int32_t, Exec> target, Acc<T> gradient_scale,
                           bool want_gradient, Matrix<T, Exec> logits, Vector<Acc<T>, Exec> loss, SoftCap = {});

// Sets the rows of y (N, D) to rows of table (V, D) by token; position (>= sequence, D), or empty, is added by row mod
// sequence (gpt). The table holds tokens [first, first + V); the row of any other token is zero.
template <class Exec, class T>
void embed(const Exec&, Vector<const std::int32_t, Exec> token, Matrix<const T, Exec> table,
           Matrix<const T, Exec> position, int sequence, Matrix<T, Exec> y, std::int32_t first = 0);
// The tokens of N rows, and the numbers of these rows sorted by token, those of one token in order.
template <class Exec>
struct TokenRows {
  Vector<const std::int32_t, Exec> token, order;  // (N) each
};
// Sorts rows: sets order to that of TokenRows. Three arrays of N in host memory; tokens are not negative, scratch is
// written to.
void sort_rows(std::span<const std::int32_t> token, std::span<std::int32_t> order, std::span<std::int32_t> scratch);
// Adds the rows of dy by token to dtable (V, D), other tokens left out, and by position to dposition (empty: skipped).
// Rows are summed in order: bits do not depend on the thread count. One kernel.
template <class Exec, class T>
void embed_backward(const Exec&, const TokenRows<Exec>&, Matrix<const T, Exec> dy, int sequence,
                    Matrix<Acc<T>, Exec> dtable, Matrix<Acc<T>, Exec> dposition, std::int32_t first = 0);

// Softmax cross-entropy of logits whose vocabulary lies on several ranks: logits (R, v) are columns [first, first + v)
// of all. There are three kernels; between them the caller takes the largest, then the sums, over the ranks. The result
// is that of softmax_cross_entropy; rows whose target is below 0 are passed over.

// Sets largest (R) to that of the own logits, or -infinity without columns or target; a NaN may be passed over.
template <class Exec, class T>
void row_largest(const Exec&, Vector<const std::int32_t, Exec> target, Matrix<const T, Exec> logits,
                 Vector<Acc<T>, Exec> largest);

// Computes, from the largest of all ranks, the own part of both sums: of exp(logits - largest), which any non-finite
// logit makes non-finite, and of the target's logit - largest (0 where another rank has it).
template <class Exec, class T>
void row_exponentials(const Exec&, Vector<const std::int32_t, Exec> target, std::int32_t first,
                      Vector<const Acc<T>, Exec> largest, Matrix<const T, Exec> logits, Vector<Acc<T>, Exec> sum,
                      Vector<Acc<T>, Exec> picked);

// Computes loss (R) from the sums of all ranks, and writes the own gradient in the place of the logits.
template <class Exec, class T>
void split_cross_entropy(const Exec&, Vector<const std::int32_t, Exec> target, std::int32_t first,
                         Vector<const Acc<T>, Exec> largest, Vector<const Acc<T>, Exec> sum,
                         Vector<const Acc<T>, Exec> picked, Acc<T> gradient_scale, bool want_gradient,
                         Matrix<T, Exec> logits, Vector<Acc<T>, Exec> loss, SoftCap = {});

}  // namespace sestina
