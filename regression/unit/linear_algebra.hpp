// Plain linear algebra in double, for the tests of decompositions and of what uses them.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "reference.hpp"

namespace sestina::reference {

inline Array transposed(const Array& a) {
  Array t(a.cols, a.rows);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.cols; ++j) t(j, i) = a(i, j);
  return t;
}

inline Array product(const Array& a, const Array& b) {
  Array c(a.rows, b.cols);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < a.cols; ++k)
      for (std::size_t j = 0; j < b.cols; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}

inline Array identity(std::size_t d) {
  Array a(d, d);
  for (std::size_t i = 0; i < d; ++i) a(i, i) = 1;
  return a;
}

inline Array diagonal(const std::vector<double>& values) {
  Array a(values.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) a(i, i) = values[i];
  return a;
}

inline double largest_difference(const Array& a, const Array& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) largest = std::max(largest, std::abs(a.values[i] - b.values[i]));
  return largest;
}

// Gram-Schmidt, twice, in double: columns of a matrix of full rank.
inline Array orthonormalized(Array a) {
  for (std::size_t j = 0; j < a.cols; ++j)
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t k = 0; k < j; ++k) {
        double dot = 0;
        for (std::size_t i = 0; i < a.rows; ++i) dot += a(i, j) * a(i, k);
        for (std::size_t i = 0; i < a.rows; ++i) a(i, j) -= dot * a(i, k);
      }
      double squares = 0;
      for (std::size_t i = 0; i < a.rows; ++i) squares += a(i, j) * a(i, j);
      for (std::size_t i = 0; i < a.rows; ++i) a(i, j) /= std::sqrt(squares);
    }
  return a;
}

inline Array random_basis(std::size_t d, unsigned seed) { return orthonormalized(random_array(d, d, seed)); }

// Q diag(values) Q^T.
inline Array with_eigenvalues(const Array& q, const std::vector<double>& values) {
  return product(product(q, diagonal(values)), transposed(q));
}

}  // namespace sestina::reference
