// Columns and rows of matrices by permutations kept as index maps: no permutation is ever a matrix. An index names each
// place once. Nothing fences.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// y (N, n): column j = or += column index[j] of x.
template <class Exec, class T>
void take_columns(const Exec&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> index, bool add,
                  Matrix<T, Exec> y);
// y (N, n): column index[j] = column j of x, the inverse of take_columns. y must not be x.
template <class Exec, class T>
void put_columns(const Exec&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> index, Matrix<T, Exec> y);

// y (m, n) = x with element (i, j) taken from (rows[i], cols[j]).
template <class Exec, class From, class To>
void take_elements(const Exec&, Matrix<const From, Exec> x, Vector<const std::int32_t, Exec> rows,
                   Vector<const std::int32_t, Exec> cols, Matrix<To, Exec> y);
// y (m, n) = x with element (i, j) put to (rows[i], cols[j]); y may have more rows than x.
template <class Exec, class From, class To>
void put_elements(const Exec&, Matrix<const From, Exec> x, Vector<const std::int32_t, Exec> rows,
                  Vector<const std::int32_t, Exec> cols, Matrix<To, Exec> y);

// inverse[index[i]] = i.
template <class Exec>
void invert_index(const Exec&, Vector<const std::int32_t, Exec> index, Vector<std::int32_t, Exec> inverse);
// places[i] becomes index[places[i]].
template <class Exec>
void follow_index(const Exec&, Vector<const std::int32_t, Exec> index, Vector<std::int32_t, Exec> places);

}  // namespace sestina
