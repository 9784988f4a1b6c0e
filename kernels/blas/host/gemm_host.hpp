// The interface through which gemm_host.cpp uses a host library: one product of known shape, by raw pointers. Its twins
// are gemm_onednn.cpp and gemm_openblas.cpp, chosen by CMake. Private to the matrix products.
#pragma once
#include <cblas.h>

#include <cstdint>
#include <memory>

#include "kernels/blas/gemm_op.hpp"

namespace sestina::host {

enum class GemmTypes : std::uint8_t { f32, f64, bf16, bf16_to_f32 };  // types of A and B, and of C
constexpr bool reads_bf16(GemmTypes types) { return types == GemmTypes::bf16 || types == GemmTypes::bf16_to_f32; }

// C (m, n) = alpha * op_a(A) op_b(B) + beta * C (C is not read when beta is 0); row-major with leading dimensions; k is
// the length of the sums. m, n, k > 0.
struct Product {
  GemmTypes types = GemmTypes::f32;
  Op op_a = Op::none, op_b = Op::none;
  double beta = 0;      // part of the prepared product
  bool scaled = false;  // alpha differs from 1
  std::int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;

  bool operator==(const Product&) const = default;
};

struct Operands {
  double alpha = 1;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
};

// Runs products on as many threads as OpenMP gives the caller. It keeps what the library needs for each product, so
// that one seen before allocates nothing. Not thread-safe.
class Library {
 public:
  Library();
  ~Library();
  Library(Library&&) noexcept;

  void run(const Product&, const Operands&);

  // Runs a product of the program itself (packed_product.hpp), whose bits depend on its operands and k alone: neither
  // on threads nor on the part of a larger product that it is. False: there is none for these types on this processor.
  bool run_packed(const Product&, const Operands&);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns whether run(), or run_packed() where `fixed`, computes all products of these types as packed ones of the
// program itself, which prepares nothing for a shape.
bool is_packed(GemmTypes, bool fixed);

// Returns the widest instruction set that the library uses on this processor, as instruction_set.hpp names it.
const char* library_instruction_set();

// Products in float and double through CBLAS, for the host twins.

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
