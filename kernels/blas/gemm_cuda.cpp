// Gemm on the device through cuBLAS. Row-major C = op_a(A) op_b(B) is column-major C^T = op_b(B)^T op_a(A)^T, and a
// row-major matrix read as column-major is its transpose: so A and B change places and keep their operations.
#include <cublas_v2.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/blas/gemm_group_cuda.hpp"

namespace sestina {

using namespace cublas;

template <>
struct Gemm<Kokkos::Cuda>::State {
  explicit State(const Kokkos::Cuda& exec, bool deterministic)
      : exec(exec),
        deterministic(deterministic),
        workspace(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::cublas"), workspace_bytes + alignment) {
    require_success(cublasCreate(&handle), "creating a handle");
    require_success(cublasSetStream(handle, exec.cuda_stream()), "setting the stream");
    // With memory of ours cuBLAS allocates nothing later, and results repeat from run to run. It wants the alignment of
    // cudaMalloc, which a view does not have: Kokkos keeps a header before its data.
    const auto data = reinterpret_cast<std::uintptr_t>(workspace.data());
    void* const aligned = reinterpret_cast<void*>((data + alignment - 1) / alignment * alignment);
    require_success(cublasSetWorkspace(handle, aligned, workspace_bytes), "setting the workspace");
    require_success(cublasSetMathMode(handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
                    "setting the math mode");
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
  std::unique_ptr<Group> group;  // made when it is first needed

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
  const auto [m, n, k] = int_product_sizes(op_a, op_b, a, b, c);
  SESTINA_REQUIRE(count <= std::size_t(std::numeric_limits<int>::max()), "{} products exceed an int", count);
  if (m == 0 || n == 0 || count == 0) return;  // k = 0: cuBLAS scales C by beta
  state_->count.flops += 2.0 * double(count) * double(m) * double(n) * double(k);
  if (state_->timing) state_->begin();
  require_success(
      count == 1 ? cublasGemmEx(state_->handle, operation(op_b), operation(op_a), int(n), int(m), int(k), &alpha,
                                b.data(), data_type<TA>(), int_leading(b), a.data(), data_type<TA>(), int_leading(a),
                                &beta, c.data(), data_type<TC>(), int_leading(c),
                                compute_type<TA>(state_->deterministic, state_->tf32), CUBLAS_GEMM_DEFAULT)
                 : cublasGemmStridedBatchedEx(
                       state_->handle, operation(op_b), operation(op_a), int(n), int(m), int(k), &alpha, b.data(),
                       data_type<TA>(), int_leading(b), (long long)(apart.b), a.data(), data_type<TA>(), int_leading(a),
                       (long long)(apart.a), &beta, c.data(), data_type<TC>(), int_leading(c), (long long)(apart.c),
                       int(count), compute_type<TA>(state_->deterministic, state_->tf32), CUBLAS_GEMM_DEFAULT),
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
  require_success(
      cublasGemmBatchedEx(state_->handle, operation(op_b), operation(op_a), int(n), int(m), int(k), &alpha,
                          reinterpret_cast<const void* const*>(b.in_space), data_type<TA>(), int_leading(b[0]),
                          reinterpret_cast<const void* const*>(a.in_space), data_type<TA>(), int_leading(a[0]), &beta,
                          reinterpret_cast<void* const*>(c.in_space), data_type<TC>(), int_leading(c[0]), int(c.count),
                          compute_type<TA>(state_->deterministic, state_->tf32), CUBLAS_GEMM_DEFAULT),
      "products");
  if (state_->timing) state_->end();
}

namespace {

// Runs the products of a group and empties it. Those that round what they read want pointers and rows at multiples of
// 16 bytes; without them products go one by one.
template <class T>
void run_products([[maybe_unused]] cublasHandle_t handle, [[maybe_unused]] const Kokkos::Cuda& exec,
                  [[maybe_unused]] cublasComputeType_t type, [[maybe_unused]] Acc<T> alpha,
                  [[maybe_unused]] Acc<T> beta, [[maybe_unused]] Group& g) {
#if CUBLAS_VERSION >= 120500
  const bool rounds = std::is_same_v<T, bf16> || type == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (g.count > 0 && !(rounds && g.bits % 16 != 0)) {
    const Acc<T>*const alphas = g.factors(0, alpha), *const betas = g.factors(1, beta);
    g.send(exec);
    require_success(cublasGemmGroupedBatchedEx(handle, g.op_a.data(), g.op_b.data(), g.m.data(), g.n.data(), g.k.data(),
                                               alphas, g.of(0), data_type<T>(), g.lda.data(), g.of(1), data_type<T>(),
                                               g.ldb.data(), betas, const_cast<void* const*>(g.of(2)), data_type<T>(),
                                               g.ldc.data(), int(g.count), g.size.data(), type),
                    "group of products");
  } else {
    for (std::size_t i = 0; i < g.count; ++i)
      require_success(cublasGemmEx(handle, g.op_a[i], g.op_b[i], g.m[i], g.n[i], g.k[i], &alpha, g.operand(0, i),
                                   data_type<T>(), g.lda[i], g.operand(1, i), data_type<T>(), g.ldb[i], &beta,
                                   g.operand(2, i), data_type<T>(), g.ldc[i], type, CUBLAS_GEMM_DEFAULT),
                      "product of a group");
  }
  g.count = 0;
  g.bits = 0;
#endif
}

}  // namespace

template <>
template <class TA, class TC>
void Gemm<Kokkos::Cuda>::run_group(std::size_t count, Op op_a, Op op_b, Acc<TA> alpha, Acc<TA> beta,
                                   EachOperands<TA, TC> next, const void* each) {
  State& s = *state_;
  if constexpr (!has_groups<TA, TC>) {
    for (std::size_t i = 0; i < count; ++i) {
      const GroupOperands<TA, TC, Kokkos::Cuda> x = next(each, i);
      (*this).template operator()<TA, TC>(op_a, op_b, alpha, x.a, x.b, beta, x.c);
    }
  } else {
    const auto run = [&] {
      run_products<TA>(s.handle, s.exec, compute_type<TA>(s.deterministic, s.tf32), alpha, beta, *s.group);
    };
    if (s.group == nullptr) s.group = std::make_unique<Group>();
    WithoutSums<TC> without;
    std::size_t waiting = 0;
    std::uint64_t elements = 0;
    const auto scale = [&] {
      if (waiting > 0) scale_matrices<TC>(s.exec, without, waiting, elements, beta);
      waiting = 0;
      elements = 0;
    };
    if (s.timing) s.begin();
    for (std::size_t i = 0; i < count; ++i) {
      const GroupOperands<TA, TC, Kokkos::Cuda> x = next(each, i);
      const GemmShape sizes = int_product_sizes(op_a, op_b, x.a, x.b, x.c);
      const auto [m, n, k] = sizes;
      if (m == 0 || n == 0 || (k == 0 && beta == 1)) continue;
      if (k > 0) {
        s.count.flops += 2.0 * double(m) * double(n) * double(k);
        s.group->add<TA>(op_a, op_b, sizes, x);
        if (s.group->count == Group::most) run();
        continue;
      }
      without.at[waiting] = x.c.data();
      without.rows[waiting] = std::uint32_t(m);
      without.cols[waiting] = std::uint32_t(n);
      without.leading[waiting++] = std::uint32_t(int_leading(x.c));
      elements = std::max(elements, std::uint64_t(m) * n);
      if (waiting == WithoutSums<TC>::most) scale();
    }
    run();
    scale();
    if (s.timing) s.end();
  }
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
  template void Gemm<Kokkos::Cuda>::run_group<TA, TC>(std::size_t, Op, Op, Acc<TA>, Acc<TA>, EachOperands<TA, TC>,     \
                                                      const void*);                                                    \
  template void Gemm<Kokkos::Cuda>::symmetric<TA, TC>(Op, Acc<TA>, Matrix<const TA, Kokkos::Cuda>, Acc<TA>,            \
                                                      Matrix<TC, Kokkos::Cuda>);                                       \
  template void Gemm<Kokkos::Cuda>::symmetric<TA, TC>(Op, Acc<TA>, const MatrixList<const TA, Kokkos::Cuda>&, Acc<TA>, \
                                                      const MatrixList<TC, Kokkos::Cuda>&);
SESTINA_GEMM(float, float)
SESTINA_GEMM(double, double)
SESTINA_GEMM(bf16, bf16)
SESTINA_GEMM(bf16, float)

}  // namespace sestina
