// The obvious matrix product, the reference that tests compare the vendor libraries with: C = alpha op_a(A) op_b(B) +
// beta C on row-major host memory with leading dimensions lda, ldb, ldc, summed in double.
#pragma once
#include <cstddef>

#include "kernels/blas/gemm.hpp"

namespace sestina {

struct GemmShape {
  std::size_t m = 0, n = 0, k = 0;  // C is (m, n), the sum runs over k
};

template <class TA, class TC>
void gemm_plain(Op op_a, Op op_b, GemmShape shape, double alpha, const TA* a, std::size_t lda, const TA* b,
                std::size_t ldb, double beta, TC* c, std::size_t ldc) {
  const auto at = [](const TA* x, std::size_t ld, Op op, std::size_t row, std::size_t col) {
    return static_cast<double>(op == Op::none ? x[row * ld + col] : x[col * ld + row]);
  };
  for (std::size_t i = 0; i < shape.m; ++i) {
    for (std::size_t j = 0; j < shape.n; ++j) {
      double sum = 0;
      for (std::size_t p = 0; p < shape.k; ++p) sum += at(a, lda, op_a, i, p) * at(b, ldb, op_b, p, j);
      const double old = beta == 0 ? 0 : beta * static_cast<double>(c[i * ldc + j]);
      c[i * ldc + j] = TC(alpha * sum + old);
    }
  }
}

}  // namespace sestina
