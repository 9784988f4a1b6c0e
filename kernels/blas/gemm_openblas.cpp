// Host products in a build without oneDNN: CBLAS in float and double; bf16 is widened to float first.
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/gemm_blas.hpp"

namespace sestina::host {
namespace {

// Rows and columns as they lie in memory.
struct Extent {
  std::int64_t rows, cols;
};

Extent stored(Op op, std::int64_t rows, std::int64_t cols) {
  return op == Op::none ? Extent{rows, cols} : Extent{cols, rows};
}

// Copies x (rows, cols; leading dimension ld) to dense y in another type.
template <class From, class To>
void copy_rows(Extent size, const From* x, std::int64_t ldx, To* y, std::int64_t ldy) {
#pragma omp parallel for
  for (std::int64_t row = 0; row < size.rows; ++row)
    for (std::int64_t col = 0; col < size.cols; ++col)
      y[row * ldy + col] = static_cast<To>(static_cast<float>(x[row * ldx + col]));
}

}  // namespace

struct Library::State {
  std::vector<float> a, b, c;  // grow to the largest product seen

  static float* room(std::vector<float>& x, Extent size) {
    const auto need = static_cast<std::size_t>(size.rows * size.cols);
    if (x.size() < need) x.resize(need);
    return x.data();
  }

  void run_bf16(const Product& p, const Operands& x) {
    const Extent size_a = stored(p.op_a, p.m, p.k), size_b = stored(p.op_b, p.k, p.n), size_c{p.m, p.n};
    float* wide_a = room(a, size_a);
    float* wide_b = room(b, size_b);
    copy_rows(size_a, static_cast<const bf16*>(x.a), p.lda, wide_a, size_a.cols);
    copy_rows(size_b, static_cast<const bf16*>(x.b), p.ldb, wide_b, size_b.cols);
    Product wide = p;
    wide.lda = size_a.cols;
    wide.ldb = size_b.cols;
    if (p.types == GemmTypes::bf16_to_f32) return blas_gemm(wide, x.alpha, wide_a, wide_b, static_cast<float*>(x.c));
    wide.ldc = p.n;
    float* wide_c = room(c, size_c);
    if (p.beta != 0) copy_rows(size_c, static_cast<const bf16*>(x.c), p.ldc, wide_c, p.n);
    blas_gemm(wide, x.alpha, wide_a, wide_b, wide_c);
    copy_rows(size_c, wide_c, p.n, static_cast<bf16*>(x.c), p.ldc);
  }
};

Library::Library() : state_(std::make_unique<State>()) {}
Library::~Library() = default;
Library::Library(Library&&) noexcept = default;

void Library::run(const Product& p, const Operands& x) {
  switch (p.types) {
    case GemmTypes::f32:
      return blas_gemm(p, x.alpha, static_cast<const float*>(x.a), static_cast<const float*>(x.b),
                       static_cast<float*>(x.c));
    case GemmTypes::f64:
      return blas_gemm(p, x.alpha, static_cast<const double*>(x.a), static_cast<const double*>(x.b),
                       static_cast<double*>(x.c));
    case GemmTypes::bf16:
    case GemmTypes::bf16_to_f32:
      return state_->run_bf16(p, x);
  }
}

}  // namespace sestina::host
