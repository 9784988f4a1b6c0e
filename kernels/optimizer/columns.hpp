// What is done to the columns of a basis: Rayleigh quotients, sorting, signs.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// dots(j) = sum over i of a(i, j) b(i, j), in fp64.
template <class Exec, class T>
void column_dots(const Exec&, Matrix<const T, Exec> a, Matrix<const T, Exec> b, Vector<double, Exec> dots);

// order(j): the index of the j-th largest key; equal keys keep their order. A NaN counts as
// -infinity, so that what is computed in vain stays within its memory.
template <class Exec>
void order_falling(const Exec&, Vector<const double, Exec> keys, Vector<std::int32_t, Exec> order);

// y(i, j) = x(i, order(j)); y must not be x.
template <class Exec, class T>
void permute_columns(const Exec&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> order, Matrix<T, Exec> y);

// Gives each column the sign with which its entry of largest size (the first of equal ones) is positive.
template <class Exec, class T>
void fix_signs(const Exec&, Matrix<T, Exec> x);

}  // namespace sestina
