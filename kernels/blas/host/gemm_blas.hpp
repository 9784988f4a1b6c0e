// Products in float and double through CBLAS, for the host twins.
#pragma once
#include <cblas.h>

#include "kernels/blas/host/gemm_host.hpp"

namespace sestina::host {

inline CBLAS_TRANSPOSE cblas_op(Op op) { return op == Op::none ? CblasNoTrans : CblasTrans; }

inline void blas_gemm(const Product& p, double alpha, const float* a, const float* b, float* c) {
  cblas_sgemm(CblasRowMajor, cblas_op(p.op_a), cblas_op(p.op_b), static_cast<int>(p.m), static_cast<int>(p.n),
              static_cast<int>(p.k), static_cast<float>(alpha), a, static_cast<int>(p.lda), b, static_cast<int>(p.ldb),
              static_cast<float>(p.beta), c, static_cast<int>(p.ldc));
}

inline void blas_gemm(const Product& p, double alpha, const double* a, const double* b, double* c) {
  cblas_dgemm(CblasRowMajor, cblas_op(p.op_a), cblas_op(p.op_b), static_cast<int>(p.m), static_cast<int>(p.n),
              static_cast<int>(p.k), alpha, a, static_cast<int>(p.lda), b, static_cast<int>(p.ldb), p.beta, c,
              static_cast<int>(p.ldc));
}

}  // namespace sestina::host
