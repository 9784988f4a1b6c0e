#include "kernels/optimizer/householder_host.hpp"

#include <cblas.h>

#include <algorithm>

#include "kernels/optimizer/lapack.hpp"

namespace sestina::host {
namespace {

constexpr std::size_t block = 64;  // reflections that are applied together

int as_int(std::size_t n) { return static_cast<int>(n); }

// Computes C (m, n) = alpha op(A) B + beta C with sums of length k.
void multiply(bool transpose, std::size_t m, std::size_t n, std::size_t k, float alpha, const float* a, std::size_t lda,
              const float* b, std::size_t ldb, float beta, float* c, std::size_t ldc) {
  cblas_sgemm(CblasColMajor, transpose ? CblasTrans : CblasNoTrans, CblasNoTrans, as_int(m), as_int(n), as_int(k),
              alpha, a, as_int(lda), b, as_int(ldb), beta, c, as_int(ldc));
}
void multiply(bool transpose, std::size_t m, std::size_t n, std::size_t k, double alpha, const double* a,
              std::size_t lda, const double* b, std::size_t ldb, double beta, double* c, std::size_t ldc) {
  cblas_dgemm(CblasColMajor, transpose ? CblasTrans : CblasNoTrans, CblasNoTrans, as_int(m), as_int(n), as_int(k),
              alpha, a, as_int(lda), b, as_int(ldb), beta, c, as_int(ldc));
}
// Computes B (m, n) = op(A) B, A upper triangular.
void multiply_triangle(bool transpose, std::size_t m, std::size_t n, const float* a, float* b) {
  cblas_strmm(CblasColMajor, CblasLeft, CblasUpper, transpose ? CblasTrans : CblasNoTrans, CblasNonUnit, as_int(m),
              as_int(n), 1, a, as_int(block), b, as_int(block));
}
void multiply_triangle(bool transpose, std::size_t m, std::size_t n, const double* a, double* b) {
  cblas_dtrmm(CblasColMajor, CblasLeft, CblasUpper, transpose ? CblasTrans : CblasNoTrans, CblasNonUnit, as_int(m),
              as_int(n), 1, a, as_int(block), b, as_int(block));
}

// A block of reflections I - V T V^T (Schreiber and Van Loan, 1989): V (rows, size) is unit lower trapezoidal, T (size,
// size) upper triangular with columns `block` apart.
template <class T>
struct Reflections {
  std::size_t rows, size, leading;  // rows, columns and column distance of V
  T* v;
  const T* t;
  T* product;  // (size, columns) scratch, columns `block` apart

  // Takes V, with its ones and zeros, from where a factorisation left it: below the diagonal of a.
  void take(const T* a, std::size_t lda) {
    for (std::size_t j = 0; j < size; ++j) {
      T* column = v + j * leading;
      std::fill_n(column, j, T(0));
      column[j] = 1;
      std::copy(a + j * lda + j + 1, a + j * lda + rows, column + j + 1);
    }
  }

  // Computes C (rows, columns) = (I - V T V^T) C or its transpose.
  void apply(bool transpose, std::size_t columns, T* c, std::size_t ldc) const {
    multiply(true, size, columns, rows, T(1), v, leading, c, ldc, T(0), product, block);
    multiply_triangle(transpose, size, columns, t, product);
    multiply(false, rows, columns, size, T(-1), v, leading, product, block, T(1), c, ldc);
  }
};

}  // namespace

std::size_t householder_scratch(std::size_t m, std::size_t p) {
  return block * (padded_rows(m) + 2 * p);  // V, T and product
}

template <class T>
bool form_q(std::size_t m, std::size_t n, std::size_t p, T* a, T* scratch) {
  const std::size_t lda = padded_rows(m);
  T* const v = scratch;
  T* const triangles = v + block * lda;
  T* const product = triangles + block * p;
  const auto reflections = [&](std::size_t k) {
    return Reflections<T>{m - k, std::min(block, n - k), lda, v, triangles + k * block, product};
  };
  const auto at = [&](std::size_t row, std::size_t col) { return a + row + col * lda; };

  for (std::size_t k = 0; k < n; k += block) {
    Reflections<T> r = reflections(k);
    if (lapack::geqrt3(as_int(r.rows), as_int(r.size), at(k, k), as_int(lda), triangles + k * block, as_int(block)) !=
        0)
      return false;
    r.take(at(k, k), lda);
    if (k + r.size < n) r.apply(true, n - k - r.size, at(k, k + r.size), lda);
  }
  // Applies the reflections from the last to the first to the columns of the identity: a block of them changes rows and
  // columns from its own on.
  for (std::size_t j = n; j < p; ++j) {
    std::fill_n(at(0, j), m, T(0));
    *at(j, j) = 1;
  }
  for (std::size_t k = (n + block - 1) / block * block; k > 0;) {
    k -= block;
    Reflections<T> r = reflections(k);
    r.take(at(k, k), lda);
    for (std::size_t j = k; j < k + r.size; ++j) {
      std::fill_n(at(0, j), m, T(0));
      *at(j, j) = 1;
    }
    for (std::size_t j = k + r.size; j < n; ++j) std::fill_n(at(k, j), r.size, T(0));
    r.apply(false, p - k, at(k, k), lda);
  }
  return true;
}

template bool form_q<float>(std::size_t, std::size_t, std::size_t, float*, float*);
template bool form_q<double>(std::size_t, std::size_t, std::size_t, double*, double*);

}  // namespace sestina::host
