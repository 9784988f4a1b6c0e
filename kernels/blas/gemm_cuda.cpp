// Gemm on the device through cuBLAS. Row-major C = op_a(A) op_b(B) is column-major C^T = op_b(B)^T op_a(A)^T, and a
// row-major matrix read as column-major is its transpose: so A and B change places and keep their operations.
#include <cublas_v2.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/blas/gemm.hpp"

namespace sestina {
namespace {

void check(cublasStatus_t status, const char* what) {
  SESTINA_REQUIRE(status == CUBLAS_STATUS_SUCCESS, "cuBLAS: {}: {}", what, cublasGetStatusString(status));
}

template <class T>
constexpr cudaDataType_t data_type() {
  if constexpr (std::is_same_v<T, double>) return CUDA_R_64F;
  if constexpr (std::is_same_v<T, float>) return CUDA_R_32F;
  return CUDA_R_16BF;
}

// Returns the type of the sums: fp32 (fp64 for double) whatever the inputs are, which are rounded to TF32 only where
// that is asked for.
template <class T>
constexpr cublasComputeType_t compute_type(bool deterministic, bool tf32) {
  if constexpr (std::is_same_v<T, double>) return deterministic ? CUBLAS_COMPUTE_64F_PEDANTIC : CUBLAS_COMPUTE_64F;
  if (tf32 && std::is_same_v<T, float>) return CUBLAS_COMPUTE_32F_FAST_TF32;
  return deterministic && std::is_same_v<T, float> ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
}

cublasOperation_t operation(Op op) { return op == Op::none ? CUBLAS_OP_N : CUBLAS_OP_T; }

template <class View>
int int_leading(const View& x) {
  const std::int64_t stride = leading_dimension(x);
  SESTINA_REQUIRE(stride <= std::numeric_limits<int>::max(), "leading dimension {} exceeds an int", stride);
  return static_cast<int>(stride);
}

}  // namespace

template <>
struct Gemm<Kokkos::Cuda>::State {
  explicit State(const Kokkos::Cuda& exec, bool deterministic)
      : exec(exec),
        deterministic(deterministic),
        workspace(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::cublas"), workspace_bytes + alignment) {
    check(cublasCreate(&handle), "creating a handle");
    check(cublasSetStream(handle, exec.cuda_stream()), "setting the stream");
    // With memory of ours cuBLAS allocates nothing later, and results repeat from run to run. It wants the alignment of
    // cudaMalloc, which a view does not have: Kokkos keeps a header before its data.
    const auto data = reinterpret_cast<std::uintptr_t>(workspace.data());
    void* const aligned = reinterpret_cast<void*>((data + alignment - 1) / alignment * alignment);
    check(cublasSetWorkspace(handle, aligned, workspace_bytes), "setting the workspace");
    check(cublasSetMathMode(handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION), "setting the math mode");
    for (cudaEvent_t* event : {&start, &stop}) {
      const cudaError_t error = cudaEventCreate(event);
      SESTINA_REQUIRE(error == cudaSuccess, "creating a CUDA event: {}", cudaGetErrorString(error));
    }
  }
  ~State() {
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    cublasDestroy(handle);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  static constexpr std::size_t alignment = 256;
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what cuBLAS advises for Hopper
  Kokkos::Cuda exec;
  bool deterministic = false, tf32 = false;
  bool timing = false;
  Count count;
  Kokkos::View<char*, Kokkos::CudaSpace> workspace;
  cublasHandle_t handle = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;

  void begin() { cudaEventRecord(start, exec.cuda_stream()); }
  void end() {
    cudaEventRecord(stop, exec.cuda_stream());
    cudaEventSynchronize(stop);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, start, stop);
    count.seconds += 1e-3 * milliseconds;
  }
};

template <>
Gemm<Kokkos::Cuda>::Gemm(const Kokkos::Cuda& exec, bool deterministic)
    : state_(std::make_unique<State>(exec, deterministic)) {}
template <>
Gemm<Kokkos::Cuda>::~Gemm() = default;
template <>
Gemm<Kokkos::Cuda>::Gemm(Gemm&&) noexcept = default;

template <>
template <class TA, class TC>
void Gemm<Kokkos::Cuda>::batch(std::size_t count, const Apart& apart, Op op_a, Op op_b, Acc<TA> alpha,
                               Matrix<const TA, Kokkos::Cuda> a, Matrix<const TA, Kokkos::Cuda> b, Acc<TA> beta,
                               Matrix<TC, Kokkos::Cuda> c) {
  const bool plain_a = op_a == Op::none, plain_b = op_b == Op::none;
  const std::size_t m = a.extent(plain_a ? 0 : 1), k = a.extent(plain_a ? 1 : 0), n = b.extent(plain_b ? 1 : 0);
  SESTINA_REQUIRE(b.extent(plain_b ? 0 : 1) == k && c.extent(0) == m && c.extent(1) == n,
                  "product of A ({}, {}){} and B ({}, {}){} into C ({}, {})", a.extent(0), a.extent(1),
                  plain_a ? "" : "^T", b.extent(0), b.extent(1), plain_b ? "" : "^T", c.extent(0), c.extent(1));
  SESTINA_REQUIRE(std::max({m, n, k, count}) <= std::size_t(std::numeric_limits<int>::max()),
                  "{} x {} x {} x {} exceeds an int", count, m, n, k);
  if (m == 0 || n == 0 || count == 0) return;  // k = 0: cuBLAS scales C by beta
  state_->count.flops += 2.0 * double(count) * double(m) * double(n) * double(k);
  if (state_->timing) state_->begin();
  check(count == 1
            ? cublasGemmEx(state_->handle, operation(op_b), operation(op_a), int(n), int(m), int(k), &alpha, b.data(),
                           data_type<TA>(), int_leading(b), a.data(), data_type<TA>(), int_leading(a), &beta, c.data(),
                           data_type<TC>(), int_leading(c), compute_type<TA>(state_->deterministic, state_->tf32),
                           CUBLAS_GEMM_DEFAULT)
            : cublasGemmStridedBatchedEx(state_->handle, operation(op_b), operation(op_a), int(n), int(m), int(k),
                                         &alpha, b.data(), data_type<TA>(), int_leading(b), (long long)(apart.b),
                                         a.data(), data_type<TA>(), int_leading(a), (long long)(apart.a), &beta,
                                         c.data(), data_type<TC>(), int_leading(c), (long long)(apart.c), int(count),
                                         compute_type<TA>(state_->deterministic, state_->tf32), CUBLAS_GEMM_DEFAULT),
        "product");
  if (state_->timing) state_->end();
}

template <>
template <class TA, class TC>
void Gemm<Kokkos::Cuda>::operator()(Op op_a, Op op_b, Acc<TA> alpha, Matrix<const TA, Kokkos::Cuda> a,
                                    Matrix<const TA, Kokkos::Cuda> b, Acc<TA> beta, Matrix<TC, Kokkos::Cuda> c) {
  batch<TA, TC>(1, {}, op_a, op_b, alpha, a, b, beta, c);
}

template <>
template <class TA, class TC>
void Gemm<Kokkos::Cuda>::batch(Op op_a, Op op_b, Acc<TA> alpha, const MatrixList<const TA, Kokkos::Cuda>& a,
                               const MatrixList<const TA, Kokkos::Cuda>& b, Acc<TA> beta,
                               const MatrixList<TC, Kokkos::Cuda>& c) {
  require_equal_counts(a, b, c);
  if (c.count == 0) return;
  if (c.count == 1) return (*this).template operator()<TA, TC>(op_a, op_b, alpha, a[0], b[0], beta, c[0]);
  const bool plain_a = op_a == Op::none, plain_b = op_b == Op::none;
  const std::size_t m = plain_a ? a.rows : a.cols, k = plain_a ? a.cols : a.rows, n = plain_b ? b.cols : b.rows;
  SESTINA_REQUIRE((plain_b ? b.rows : b.cols) == k && c.rows == m && c.cols == n,
                  "products of A ({}, {}){} and B ({}, {}){} into C ({}, {})", a.rows, a.cols, plain_a ? "" : "^T",
                  b.rows, b.cols, plain_b ? "" : "^T", c.rows, c.cols);
  SESTINA_REQUIRE(std::max({m, n, k, c.count}) <= std::size_t(std::numeric_limits<int>::max()),
                  "{} x {} x {} x {} exceeds an int", c.count, m, n, k);
  if (m == 0 || n == 0) return;
  state_->count.flops += 2.0 * double(c.count) * double(m) * double(n) * double(k);
  if (state_->timing) state_->begin();
  check(cublasGemmBatchedEx(state_->handle, operation(op_b), operation(op_a), int(n), int(m), int(k), &alpha,
                            reinterpret_cast<const void* const*>(b.in_space), data_type<TA>(), int_leading(b[0]),
                            reinterpret_cast<const void* const*>(a.in_space), data_type<TA>(), int_leading(a[0]), &beta,
                            reinterpret_cast<void* const*>(c.in_space), data_type<TC>(), int_leading(c[0]),
                            int(c.count), compute_type<TA>(state_->deterministic, state_->tf32), CUBLAS_GEMM_DEFAULT),
        "products");
  if (state_->timing) state_->end();
}

// From this side on a symmetric product is computed in tiles.
static constexpr std::size_t tiled_side = 8192;

// Computes the tiles on and below the diagonal and mirrors them, where there are so many that the work they save is
// more than what single tiles leave of a device (a tile is 32 blocks of threads, an H100 has 132 processors). Else it
// is one product: two elements that should be equal may be summed in different orders.
template <>
template <class TA, class TC>
void Gemm<Kokkos::Cuda>::symmetric(Op op, Acc<TA> alpha, Matrix<const TA, Kokkos::Cuda> a, Acc<TA> beta,
                                   Matrix<TC, Kokkos::Cuda> c) {
  constexpr std::size_t tile = 1024;
  const bool plain = op == Op::none;
  const std::size_t m = a.extent(plain ? 0 : 1), size = m >= tiled_side ? tile : std::max<std::size_t>(m, 1);
  SESTINA_REQUIRE(c.extent(0) == m && c.extent(1) == m, "symmetric product of A ({}, {}){} into C ({}, {})",
                  a.extent(0), a.extent(1), plain ? "" : "^T", c.extent(0), c.extent(1));
  const auto range = [m, size](std::size_t begin) { return std::make_pair(begin, std::min(begin + size, m)); };
  const auto slice = [&](std::size_t begin) -> Matrix<const TA, Kokkos::Cuda> {
    if (plain) return Kokkos::subview(a, range(begin), Kokkos::ALL);
    return Kokkos::subview(a, Kokkos::ALL, range(begin));
  };
  for (std::size_t row = 0; row < m; row += size)
    for (std::size_t col = 0; col <= row; col += size)
      (*this).template operator()<TA, TC>(op, plain ? Op::transpose : Op::none, alpha, slice(row), slice(col), beta,
                                          Kokkos::subview(c, range(row), range(col)));
  if (m <= size) return;
  Kokkos::parallel_for(
      "mirror", Kokkos::MDRangePolicy<Kokkos::Cuda, Kokkos::Rank<2>>(state_->exec, {0, 0}, {m, m}),
      KOKKOS_LAMBDA(std::size_t i, std::size_t j) {
        if (j > i) c(i, j) = c(j, i);
      });
}

template <>
template <class TA, class TC>
void Gemm<Kokkos::Cuda>::symmetric(Op op, Acc<TA> alpha, const MatrixList<const TA, Kokkos::Cuda>& a, Acc<TA> beta,
                                   const MatrixList<TC, Kokkos::Cuda>& c) {
  if (c.rows < tiled_side) return batch<TA, TC>(op, op == Op::none ? Op::transpose : Op::none, alpha, a, a, beta, c);
  require_equal_counts(a, a, c);
  for (std::size_t i = 0; i < c.count; ++i) symmetric<TA, TC>(op, alpha, a[i], beta, c[i]);
}

template <>
void Gemm<Kokkos::Cuda>::round_to_tf32(bool on) {
  state_->tf32 = on;
}
template <>
void Gemm<Kokkos::Cuda>::time_products(bool on) {
  state_->timing = on;
}
template <>
Gemm<Kokkos::Cuda>::Count Gemm<Kokkos::Cuda>::take_count() {
  return std::exchange(state_->count, Count{});
}

#define SESTINA_GEMM(TA, TC)                                                                                           \
  template void Gemm<Kokkos::Cuda>::operator()<TA, TC>(Op, Op, Acc<TA>, Matrix<const TA, Kokkos::Cuda>,                \
                                                       Matrix<const TA, Kokkos::Cuda>, Acc<TA>,                        \
                                                       Matrix<TC, Kokkos::Cuda>);                                      \
  template void Gemm<Kokkos::Cuda>::batch<TA, TC>(std::size_t, const Apart&, Op, Op, Acc<TA>,                          \
                                                  Matrix<const TA, Kokkos::Cuda>, Matrix<const TA, Kokkos::Cuda>,      \
                                                  Acc<TA>, Matrix<TC, Kokkos::Cuda>);                                  \
  template void Gemm<Kokkos::Cuda>::batch<TA, TC>(Op, Op, Acc<TA>, const MatrixList<const TA, Kokkos::Cuda>&,          \
                                                  const MatrixList<const TA, Kokkos::Cuda>&, Acc<TA>,                  \
                                                  const MatrixList<TC, Kokkos::Cuda>&);                                \
  template void Gemm<Kokkos::Cuda>::symmetric<TA, TC>(Op, Acc<TA>, Matrix<const TA, Kokkos::Cuda>, Acc<TA>,            \
                                                      Matrix<TC, Kokkos::Cuda>);                                       \
  template void Gemm<Kokkos::Cuda>::symmetric<TA, TC>(Op, Acc<TA>, const MatrixList<const TA, Kokkos::Cuda>&, Acc<TA>, \
                                                      const MatrixList<TC, Kokkos::Cuda>&);
SESTINA_GEMM(float, float)
SESTINA_GEMM(double, double)
SESTINA_GEMM(bf16, bf16)
SESTINA_GEMM(bf16, float)

}  // namespace sestina
