// Softmax cross-entropy of logits whose vocabulary lies on several ranks: logits (R, v) are columns
// [first, first + v) of all. Three kernels; between them the caller takes the largest, then the sums, over the ranks.
// As softmax_cross_entropy in loss.hpp otherwise; rows whose target is below 0 are passed over.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// largest (R) of the own logits; a NaN may be passed over. -infinity without any, or without a target.
template <class Exec, class T>
void row_largest(const Exec&, Vector<const std::int32_t, Exec> target, Matrix<const T, Exec> logits,
                 Vector<Acc<T>, Exec> largest);

// From the largest of all ranks, the own part of both sums: of exp(logits - largest), which any non-finite logit makes
// non-finite, and of the target's logit - largest (0 where another rank has it).
template <class Exec, class T>
void row_exponentials(const Exec&, Vector<const std::int32_t, Exec> target, std::int32_t first,
                      Vector<const Acc<T>, Exec> largest, Matrix<const T, Exec> logits, Vector<Acc<T>, Exec> sum,
                      Vector<Acc<T>, Exec> picked);

// loss (R) from the sums of all ranks, and the own gradient in place of the logits.
template <class Exec, class T>
void split_cross_entropy(const Exec&, Vector<const std::int32_t, Exec> target, std::int32_t first,
                         Vector<const Acc<T>, Exec> largest, Vector<const Acc<T>, Exec> sum,
                         Vector<const Acc<T>, Exec> picked, Acc<T> gradient_scale, bool want_gradient,
                         Matrix<T, Exec> logits, Vector<Acc<T>, Exec> loss);

}  // namespace sestina
