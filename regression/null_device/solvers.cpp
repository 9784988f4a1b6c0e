// cuSOLVER, as far as it is used: what it is given is checked against what its queries of sizes have answered.
#include <cusolverDn.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "device.hpp"

using namespace null_device;

extern "C" int null_device_call(const char* name);

namespace {

template <class T>
constexpr cudaDataType_t type_of = std::is_same_v<T, double> ? CUDA_R_64F : CUDA_R_32F;

// Elements of scratch, as much as the library itself asks for, or nearly.
int eigh_scratch(int n) { return 3 * n * n + 64 * n; }
std::size_t batch_scratch(int64_t n, int64_t count, cudaDataType type) {  // bytes
  return static_cast<std::size_t>(count) * static_cast<std::size_t>(eigh_scratch(static_cast<int>(n))) *
         (type == CUDA_R_64F ? sizeof(double) : sizeof(float));
}
int qr_scratch(int n) { return 64 * n + 64; }
int svd_scratch(int m, int n) { return m * n + 64 * (m + n); }

cusolverStatus_t answer(int* size, int scratch) { return *size = scratch, CUSOLVER_STATUS_SUCCESS; }

// Handles and parameters are made, and taken back, the same way.
template <class T>
cusolverStatus_t create(const char* name, T* made) {
  null_device_call(name);
  *made = reinterpret_cast<T>(new LibraryHandle);
  return CUSOLVER_STATUS_SUCCESS;
}
template <class T>
cusolverStatus_t destroy(const char* name, T made) {
  null_device_call(name);
  delete &handle_of(made);
  return CUSOLVER_STATUS_SUCCESS;
}

// Scratch and the place of the result, which all functions take.
template <class T>
struct Scratch {
  T* work;
  int size, least;
  int* info;
};

template <class T>
cusolverStatus_t end(LibraryCall& call, const Scratch<T>& s) {
  call.size("scratch", s.size);
  if (s.size < s.least)
    call.refuse("scratch of " + std::to_string(s.size) + " elements, its query answers " + std::to_string(s.least));
  call.memory("work", s.work, std::max(s.size, s.least), type_of<T>);
  call.memory("info", s.info, 1, CUDA_R_32I);
  if (!call.end()) return CUSOLVER_STATUS_INVALID_VALUE;
  std::memset(reach(s.info, sizeof(int), "info"), 0, sizeof(int));
  return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t eigh(const char* name, cusolverDnHandle_t h, int n, T* a, int lda, T* values, T* work, int size,
                      int* info) {
  Lock lock(dev().mutex);
  LibraryCall call(name, handle_of(h).stream);
  call.size("n", n);
  call.operand({"A", a, type_of<T>, n, n, lda, 1, 0, true});
  call.memory("W", values, n, type_of<T>);
  return end<T>(call, {work, size, eigh_scratch(n), info});
}

template <class T>
cusolverStatus_t factor(const char* name, cusolverDnHandle_t h, int m, int n, T* a, int lda, T* tau, T* work, int size,
                        int* info) {
  Lock lock(dev().mutex);
  LibraryCall call(name, handle_of(h).stream);
  call.size("m", m);
  call.size("n", n);
  call.operand({"A", a, type_of<T>, m, n, lda, 1, 0, true});
  call.memory("tau", tau, std::min(m, n), type_of<T>);
  return end<T>(call, {work, size, qr_scratch(n), info});
}

template <class T>
cusolverStatus_t form(const char* name, cusolverDnHandle_t h, int m, int n, int k, T* a, int lda, const T* tau, T* work,
                      int size, int* info) {
  Lock lock(dev().mutex);
  LibraryCall call(name, handle_of(h).stream);
  call.size("m", m);
  call.size("n", n);
  call.size("k", k);
  if (n > m || k > n) call.refuse("more columns than rows, or more reflections than columns");
  call.operand({"A", a, type_of<T>, m, n, lda, 1, 0, true});
  call.memory("tau", tau, k, type_of<T>);
  return end<T>(call, {work, size, qr_scratch(n), info});
}

}  // namespace

extern "C" {

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* h) { return create("cusolverDnCreate", h); }
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t h) { return destroy("cusolverDnDestroy", h); }
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t h, cudaStream_t stream) {
  null_device_call("cusolverDnSetStream");
  handle_of(h).stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}

#define NULL_DEVICE_SOLVERS(T, type)                                                                                   \
  cusolverStatus_t cusolverDn##T##syevd_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t, int n,     \
                                                   const type*, int, const type*, int* size) {                         \
    return answer(size, eigh_scratch(n));                                                                              \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##T##syevd(cusolverDnHandle_t h, cusolverEigMode_t, cublasFillMode_t, int n, type* a,     \
                                        int lda, type* w, type* work, int size, int* info) {                           \
    return eigh<type>("cusolverDn" #T "syevd", h, n, a, lda, w, work, size, info);                                     \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##T##geqrf_bufferSize(cusolverDnHandle_t, int, int n, type*, int, int* size) {            \
    return answer(size, qr_scratch(n));                                                                                \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##T##geqrf(cusolverDnHandle_t h, int m, int n, type* a, int lda, type* tau, type* work,   \
                                        int size, int* info) {                                                         \
    return factor<type>("cusolverDn" #T "geqrf", h, m, n, a, lda, tau, work, size, info);                              \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##T##orgqr_bufferSize(cusolverDnHandle_t, int, int n, int, const type*, int, const type*, \
                                                   int* size) {                                                        \
    return answer(size, qr_scratch(n));                                                                                \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##T##orgqr(cusolverDnHandle_t h, int m, int n, int k, type* a, int lda, const type* tau,  \
                                        type* work, int size, int* info) {                                             \
    return form<type>("cusolverDn" #T "orgqr", h, m, n, k, a, lda, tau, work, size, info);                             \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##T##gesvd_bufferSize(cusolverDnHandle_t, int m, int n, int* size) {                      \
    return answer(size, svd_scratch(m, n));                                                                            \
  }
NULL_DEVICE_SOLVERS(S, float)
NULL_DEVICE_SOLVERS(D, double)

// With vectors of the shorter side's number on both sides ('S').
cusolverStatus_t cusolverDnDgesvd(cusolverDnHandle_t h, signed char left, signed char right, int m, int n, double* a,
                                  int lda, double* values, double* u, int ldu, double* vt, int ldvt, double* work,
                                  int size, double*, int* info) {
  Lock lock(dev().mutex);
  LibraryCall call("cusolverDnDgesvd", handle_of(h).stream);
  call.size("m", m);
  call.size("n", n);
  if (m < n) call.refuse("fewer rows than columns");
  if (left != 'S' || right != 'S') call.refuse("vectors that are not 'S', of which this device knows nothing");
  call.operand({"A", a, CUDA_R_64F, m, n, lda, 1, 0, true});
  call.memory("S", values, n, CUDA_R_64F);
  call.operand({"U", u, CUDA_R_64F, m, n, ldu, 1, 0, true});
  call.operand({"VT", vt, CUDA_R_64F, n, n, ldvt, 1, 0, true});
  return end<double>(call, {work, size, svd_scratch(m, n), info});
}

cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t* params) { return create("cusolverDnCreateParams", params); }
cusolverStatus_t cusolverDnDestroyParams(cusolverDnParams_t params) {
  return destroy("cusolverDnDestroyParams", params);
}
cusolverStatus_t cusolverDnXsyevBatched_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, cusolverEigMode_t,
                                                   cublasFillMode_t, int64_t n, cudaDataType type, const void*, int64_t,
                                                   cudaDataType, const void*, cudaDataType, size_t* device,
                                                   size_t* host, int64_t count) {
  *device = batch_scratch(n, count, type);
  *host = 64;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnXsyevBatched(cusolverDnHandle_t h, cusolverDnParams_t, cusolverEigMode_t, cublasFillMode_t,
                                        int64_t n, cudaDataType type, void* a, int64_t lda, cudaDataType type_w,
                                        void* w, cudaDataType computed_in, void* work, size_t bytes, void* host,
                                        size_t host_bytes, int* info, int64_t count) {
  Lock lock(dev().mutex);
  LibraryCall call("cusolverDnXsyevBatched", handle_of(h).stream);
  call.size("n", n);
  call.size("count", count);
  if (type_w != type || computed_in != type) call.refuse("values or sums of another type than the matrices");
  call.operand({"A", a, type, n, n, lda, count, lda * n, true});
  call.memory("W", w, n * count, type);
  const size_t least = batch_scratch(n, count, type);
  if (bytes < least || host_bytes < 64 || host == nullptr)
    call.refuse("scratch of " + std::to_string(bytes) + " bytes, its query answers " + std::to_string(least));
  call.memory("work", work, static_cast<long long>(std::max(bytes, least) / sizeof(float)), CUDA_R_32F);
  call.memory("info", info, count, CUDA_R_32I);
  if (!call.end()) return CUSOLVER_STATUS_INVALID_VALUE;
  std::memset(reach(info, count * sizeof(int), "info"), 0, count * sizeof(int));
  return CUSOLVER_STATUS_SUCCESS;
}
}
