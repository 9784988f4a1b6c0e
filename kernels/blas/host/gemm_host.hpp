// What gemm_host.cpp asks of a host library: one product of known shape, by raw pointers. Twins: gemm_onednn.cpp and
// gemm_openblas.cpp, chosen by CMake. Private to the matrix products.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/blas/gemm_op.hpp"

namespace sestina::host {

enum class GemmTypes : std::uint8_t { f32, f64, bf16, bf16_to_f32 };  // of A and B, and of C

// C (m, n) = alpha * op_a(A) op_b(B) + beta * C (C is not read when beta is 0); row-major with leading dimensions. m,
// n, k > 0.
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

// Runs products on as many threads as OpenMP gives the caller. Keeps per product what the library needs, so that one
// seen before allocates nothing. Not thread-safe.
class Library {
 public:
  Library();
  ~Library();
  Library(Library&&) noexcept;

  void run(const Product&, const Operands&);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The widest instruction set that the library uses on this processor, as instruction_set.hpp names it.
const char* library_instruction_set();

}  // namespace sestina::host
