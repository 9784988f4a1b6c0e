// The way of tokens to their experts and back: N tokens of width D with k choices each are R = N k rows, sorted as
// kernels/model/token_sort.hpp says. Sums are in Acc<T>, in the order of choices.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// Computes rows (R, D), of each the token's row of x (N, D).
template <class Exec, class T>
void gather_tokens(const Exec&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> token, Matrix<T, Exec> rows);
// Computes sorted (R) from values (N, k) by the places of choices.
template <class Exec, class A>
void sort_choices(const Exec&, Matrix<const A, Exec> values, Matrix<const std::int32_t, Exec> place,
                  Vector<A, Exec> sorted);
// Sets y (N, D), or adds to it, to the sums of each token's rows, times weight (N, k) where it is not empty.
template <class Exec, class T>
void combine_rows(const Exec&, Matrix<const T, Exec> rows, Matrix<const std::int32_t, Exec> place,
                  Matrix<const Acc<T>, Exec> weight, bool add, Matrix<T, Exec> y);

// The backward pass of a row's weight w times down(silu(gate) * up), for R rows of width W. It turns gate_up (R, 2W)
// into its gradient; d_inner (R, W), which is down^T applied to the gradient of the output, into w silu(gate) * up, the
// row that meets that gradient in the product for the weights of down; and weight (R) into its gradient.
template <class Exec, class T>
void weighted_swiglu_backward(const Exec&, Matrix<T, Exec> d_inner, Matrix<T, Exec> gate_up,
                              Vector<Acc<T>, Exec> weight);

}  // namespace sestina
