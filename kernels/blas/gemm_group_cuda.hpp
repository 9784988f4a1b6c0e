// Groups of products of different sizes as cuBLAS (CUDA 12.5 and later) takes them, for gemm_cuda.cpp, and what both
// share. Private to that twin.
#pragma once
#include <cublas_v2.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/blas/product_sizes.hpp"

namespace sestina::cublas {

inline void require_success(cublasStatus_t status, const char* what) {
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

inline cublasOperation_t operation(Op op) { return op == Op::none ? CUBLAS_OP_N : CUBLAS_OP_T; }

// Whether cuBLAS has groups of products of these types.
template <class TA, class TC>
inline constexpr bool has_groups = CUBLAS_VERSION >= 120500 && std::is_same_v<TA, TC>;

// Matrices, as many as go with a launch, which holds 4 kB.
template <class T>
struct WithoutSums {
  static constexpr std::size_t most = 128;
  T* at[most];
  std::uint32_t rows[most], cols[most], leading[most];
};

// Multiplies matrices of at most so many elements by beta; 0 overwrites whatever is there.
template <class T>
static void scale_matrices(const Kokkos::Cuda& exec, const WithoutSums<T>& x, std::size_t count, std::uint64_t elements,
                           Acc<T> beta) {
  using Policy = Kokkos::RangePolicy<Kokkos::Cuda, Kokkos::IndexType<std::uint64_t>>;
  Kokkos::parallel_for(
      "group_without_sums", with_functor(Policy(exec, 0, count * elements)), KOKKOS_LAMBDA(std::uint64_t i) {
        const std::uint64_t which = i / elements, element = i % elements, row = element / x.cols[which];
        if (row >= x.rows[which]) return;
        T& c = x.at[which][row * x.leading[which] + element % x.cols[which]];
        c = beta == 0 ? T{} : T(beta * static_cast<Acc<T>>(c));
      });
}

inline void require_success(cudaError_t error, const char* what) {
  SESTINA_REQUIRE(error == cudaSuccess, "CUDA: {}: {}", what, cudaGetErrorString(error));
}

// Pointers on their way to the device: pinned memory in pieces, of which each is used again when its copy has ended. As
// many copies as there are pieces can be under way before the host waits for one.
class StagedPointers {
 public:
  explicit StagedPointers(std::size_t most)
      : most_(most),
        memory_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::gemm_group_staged"), pieces * most) {
    for (cudaEvent_t& event : copied_)
      require_success(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  }
  ~StagedPointers() {
    for (cudaEvent_t event : copied_) cudaEventDestroy(event);
  }
  StagedPointers(const StagedPointers&) = delete;
  StagedPointers& operator=(const StagedPointers&) = delete;

  // Returns memory for pointers, which the next send() copies.
  std::uintptr_t* next() {
    piece_ = (piece_ + 1) % pieces;
    if (cudaEventQuery(copied_[piece_]) == cudaErrorNotReady)
      require_success(cudaEventSynchronize(copied_[piece_]), "waiting for pointers");
    return memory_.data() + piece_ * most_;
  }
  void send(const Kokkos::Cuda& exec, std::size_t count, std::uintptr_t* to) {
    require_success(cudaMemcpyAsync(to, memory_.data() + piece_ * most_, count * sizeof(std::uintptr_t),
                                    cudaMemcpyHostToDevice, exec.cuda_stream()),
                    "copying pointers");
    require_success(cudaEventRecord(copied_[piece_], exec.cuda_stream()), "recording an event");
  }

 private:
  static constexpr std::size_t pieces = 32;
  std::size_t most_, piece_ = 0;
  Kokkos::View<std::uintptr_t*, Kokkos::SharedHostPinnedSpace> memory_;
  std::array<cudaEvent_t, pieces> copied_{};
};

// A group of products as cuBLAS takes it: sizes in host memory, pointers in the device's.
struct Group {
  static constexpr std::size_t most = 1024;  // in one call
  std::vector<cublasOperation_t> op_a, op_b;
  std::vector<int> m, n, k, lda, ldb, ldc, size;
  std::array<std::vector<float>, 2> narrow_factors;  // alpha and beta, in the type of the sums
  std::array<std::vector<double>, 2> wide_factors;
  std::vector<std::uintptr_t> pointers;  // of A, B and C in turn: most apart
  std::size_t count = 0;
  std::uintptr_t bits = 0;  // of all pointers and distances of rows, in bytes
  StagedPointers staged{3 * most};
  Kokkos::View<std::uintptr_t*, Kokkos::CudaSpace> in_space;

  Group()
      : op_a(most),
        op_b(most),
        m(most),
        n(most),
        k(most),
        lda(most),
        ldb(most),
        ldc(most),
        size(most, 1),
        narrow_factors{std::vector<float>(most), std::vector<float>(most)},
        wide_factors{std::vector<double>(most), std::vector<double>(most)},
        pointers(3 * most),
        in_space(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::gemm_group"), 3 * most) {}

  // Adds the product of A and B as they lie by rows: they change places.
  template <class T>
  void add(Op a_op, Op b_op, const GemmShape& sizes, const GroupOperands<T, T, Kokkos::Cuda>& x) {
    op_a[count] = operation(b_op);
    op_b[count] = operation(a_op);
    m[count] = int(sizes.n);
    n[count] = int(sizes.m);
    k[count] = int(sizes.k);
    lda[count] = int_leading(x.b);
    ldb[count] = int_leading(x.a);
    ldc[count] = int_leading(x.c);
    const std::uintptr_t at[] = {reinterpret_cast<std::uintptr_t>(x.b.data()),
                                 reinterpret_cast<std::uintptr_t>(x.a.data()),
                                 reinterpret_cast<std::uintptr_t>(x.c.data())};
    for (std::size_t i = 0; i < 3; ++i) pointers[i * most + count] = at[i];
    for (const int leading : {lda[count], ldb[count], ldc[count]})
      bits |= sizeof(T) * static_cast<std::uintptr_t>(leading);
    bits |= at[0] | at[1] | at[2];
    ++count;
  }
  std::vector<float>& kept(std::size_t which, float) { return narrow_factors[which]; }
  std::vector<double>& kept(std::size_t which, double) { return wide_factors[which]; }
  template <class A>
  const A* factors(std::size_t which, A factor) {
    std::fill_n(kept(which, factor).begin(), count, factor);
    return kept(which, factor).data();
  }
  // Brings the pointers of A, B and C to the device in the order of the stream, where products before have read theirs.
  void send(const Kokkos::Cuda& exec) {
    std::uintptr_t* to = staged.next();
    for (std::size_t i = 0; i < 3; ++i) to = std::copy_n(&pointers[i * most], count, to);
    staged.send(exec, 3 * count, in_space.data());
  }
  void* operand(std::size_t which, std::size_t i) const { return reinterpret_cast<void*>(pointers[which * most + i]); }
  const void* const* of(std::size_t operand) const {
    return reinterpret_cast<const void* const*>(in_space.data() + operand * count);
  }
};

}  // namespace sestina::cublas
