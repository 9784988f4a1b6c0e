// Libraries of algebra on the device, and what Kokkos tells its tools (KOKKOS_TOOLS_LIBS names this library).
#include <cublas_v2.h>
#include <cusolverDn.h>

#include <cstdint>
#include <cstring>

#include "device.hpp"

using namespace null_device;

extern "C" int null_device_call(const char* name);

namespace {

// A matrix that a library is given: column-major, in one allocation of device memory.
void check_matrix(const char* call, const void* at, int rows, int cols, int leading, cudaDataType_t type) {
  if (rows <= 0 || cols <= 0) return;
  const std::size_t element = type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
  if (!in_arena(at)) problem(std::string(call) + ": a matrix that is not in device memory");
  if (leading < rows) problem(std::string(call) + ": leading dimension smaller than the number of rows");
  reach(at, (std::size_t(leading) * (cols - 1) + rows) * element, call);
}

}  // namespace

extern "C" {

// ---- cuBLAS, cuSOLVER
cublasStatus_t cublasCreate_v2(cublasHandle_t* h) {
  null_device_call("cublasCreate");
  *h = reinterpret_cast<cublasHandle_t>(&dev());
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t) { return "null device"; }
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void* at, size_t) {
  null_device_call("cublasSetWorkspace");
  if (reinterpret_cast<std::uintptr_t>(at) % 256 != 0)
    problem("cublasSetWorkspace: memory that is not aligned to 256 bytes");
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                            const void*, const void* a, cudaDataType_t at, int lda, const void* b, cudaDataType_t bt,
                            int ldb, const void*, void* c, cudaDataType_t ct, int ldc, cublasComputeType_t,
                            cublasGemmAlgo_t) {
  Lock lock(dev().mutex);
  null_device_call("cublasGemmEx");
  check_matrix("cublasGemmEx, A", a, ta ? k : m, ta ? m : k, lda, at);
  check_matrix("cublasGemmEx, B", b, tb ? n : k, tb ? k : n, ldb, bt);
  check_matrix("cublasGemmEx, C", c, m, n, ldc, ct);
  return CUBLAS_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* h) {
  null_device_call("cusolverDnCreate");
  *h = reinterpret_cast<cusolverDnHandle_t>(&dev());
  return CUSOLVER_STATUS_SUCCESS;
}
#define NULL_DEVICE_SIZES(T, type, syevd, orgqr)                                                            \
  cusolverStatus_t syevd(cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t, int n, const type*, int,  \
                         const type*, int* size) {                                                          \
    return *size = 3 * n * n + 64 * n, CUSOLVER_STATUS_SUCCESS;                                             \
  }                                                                                                         \
  cusolverStatus_t cusolverDn##T##geqrf_bufferSize(cusolverDnHandle_t, int, int n, type*, int, int* size) { \
    return *size = 64 * n + 64, CUSOLVER_STATUS_SUCCESS;                                                    \
  }                                                                                                         \
  cusolverStatus_t orgqr(cusolverDnHandle_t, int, int n, int, const type*, int, const type*, int* size) {   \
    return *size = 64 * n + 64, CUSOLVER_STATUS_SUCCESS;                                                    \
  }                                                                                                         \
  cusolverStatus_t cusolverDn##T##gesvd_bufferSize(cusolverDnHandle_t, int m, int n, int* size) {           \
    return *size = m * n + 64 * (m + n), CUSOLVER_STATUS_SUCCESS;                                           \
  }
NULL_DEVICE_SIZES(S, float, cusolverDnSsyevd_bufferSize, cusolverDnSorgqr_bufferSize)
NULL_DEVICE_SIZES(D, double, cusolverDnDsyevd_bufferSize, cusolverDnDorgqr_bufferSize)

// ---- Kokkos Tools (KOKKOS_TOOLS_LIBS names this library): labels
struct KokkosSpace {
  char name[64];
};
struct KokkosSettings {
  bool requires_global_fencing, padding[255];
};
void kokkosp_init_library(int, std::uint64_t, std::uint32_t, void*) {}
void kokkosp_request_tool_settings(std::uint32_t, KokkosSettings* settings) {
  settings->requires_global_fencing = false;
}
void kokkosp_finalize_library() {
  if (std::getenv("NULL_DEVICE_REPORT")) report();  // programs that leave by _exit
}
#define NULL_DEVICE_PARALLEL(what)                                                             \
  void kokkosp_begin_parallel_##what(const char* name, std::uint32_t device, std::uint64_t*) { \
    Lock lock(dev().mutex);                                                                    \
    kernel_label = #what ": " + std::string(name);                                             \
    if (device >> 24 != 2) count("host loop", kernel_label);                                   \
  }                                                                                            \
  void kokkosp_end_parallel_##what(std::uint64_t) { kernel_label.clear(); }
NULL_DEVICE_PARALLEL(for)
NULL_DEVICE_PARALLEL(reduce)
NULL_DEVICE_PARALLEL(scan)
void kokkosp_begin_fence(const char* name, std::uint32_t device, std::uint64_t*) {
  if (device >> 24 == 2) fence_label = name;
}
void kokkosp_end_fence(std::uint64_t) { fence_label.clear(); }
void kokkosp_begin_deep_copy(KokkosSpace, const char* to, const void*, KokkosSpace, const char* from, const void*,
                             std::uint64_t) {
  copy_label = std::string(from) + " -> " + to;
}
void kokkosp_end_deep_copy() { copy_label.clear(); }
void kokkosp_allocate_data(KokkosSpace space, const char* label, const void* p, std::uint64_t bytes) {
  Lock lock(dev().mutex);
  if (std::strncmp(space.name, "Cuda", 4) != 0) return;
  count("allocation by name", std::string(space.name) + ": " + label, bytes);
  if (const auto found = find(p).second) found->label = label;
}
}
