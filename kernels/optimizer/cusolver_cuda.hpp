// The calls of cuSOLVER that eigen_cuda.cpp makes, by type, with the scratch that they ask for.
#pragma once
#include <cusolverDn.h>

#include <algorithm>
#include <limits>

#include "kernels/base/error.hpp"

namespace sestina::cusolver {

inline void check_cusolver(cusolverStatus_t status, const char* what) {
  SESTINA_REQUIRE(status == CUSOLVER_STATUS_SUCCESS, "cuSOLVER: {}: status {}", what, static_cast<int>(status));
}

inline int as_int(std::size_t n) {
  SESTINA_REQUIRE(n <= std::size_t(std::numeric_limits<int>::max()), "{} exceeds an int", n);
  return static_cast<int>(n);
}

// What the library makes and takes back.
template <class T, cusolverStatus_t (*create)(T*), cusolverStatus_t (*destroy)(T)>
class Owned {
 public:
  Owned() { check_cusolver(create(&made_), "creating a handle, or parameters"); }
  ~Owned() { destroy(made_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  operator T() const { return made_; }

 private:
  T made_ = nullptr;
};
using Handle = Owned<cusolverDnHandle_t, cusolverDnCreate, cusolverDnDestroy>;

// These functions have one overload for each type. Sizes of scratch are in elements.
inline int eigh_size(cusolverDnHandle_t h, int d, float*) {
  int size = 0;
  check_cusolver(
      cusolverDnSsyevd_bufferSize(h, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, d, nullptr, d, nullptr, &size),
      "size of syevd");
  return size;
}
inline int eigh_size(cusolverDnHandle_t h, int d, double*) {
  int size = 0;
  check_cusolver(
      cusolverDnDsyevd_bufferSize(h, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, d, nullptr, d, nullptr, &size),
      "size of syevd");
  return size;
}
inline cusolverStatus_t syevd(cusolverDnHandle_t h, int d, float* a, float* values, float* work, int size, int* info) {
  return cusolverDnSsyevd(h, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, d, a, d, values, work, size, info);
}
inline cusolverStatus_t syevd(cusolverDnHandle_t h, int d, double* a, double* values, double* work, int size,
                              int* info) {
  return cusolverDnDsyevd(h, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, d, a, d, values, work, size, info);
}

inline int qr_size(cusolverDnHandle_t h, int m, int n, int p, float*) {
  int factor = 0, form = 0;
  check_cusolver(cusolverDnSgeqrf_bufferSize(h, m, n, nullptr, m, &factor), "size of geqrf");
  check_cusolver(cusolverDnSorgqr_bufferSize(h, m, p, n, nullptr, m, nullptr, &form), "size of orgqr");
  return std::max(factor, form);
}
inline int qr_size(cusolverDnHandle_t h, int m, int n, int p, double*) {
  int factor = 0, form = 0;
  check_cusolver(cusolverDnDgeqrf_bufferSize(h, m, n, nullptr, m, &factor), "size of geqrf");
  check_cusolver(cusolverDnDorgqr_bufferSize(h, m, p, n, nullptr, m, nullptr, &form), "size of orgqr");
  return std::max(factor, form);
}
inline cusolverStatus_t geqrf(cusolverDnHandle_t h, int m, int n, float* a, float* tau, float* work, int size,
                              int* info) {
  return cusolverDnSgeqrf(h, m, n, a, m, tau, work, size, info);
}
inline cusolverStatus_t geqrf(cusolverDnHandle_t h, int m, int n, double* a, double* tau, double* work, int size,
                              int* info) {
  return cusolverDnDgeqrf(h, m, n, a, m, tau, work, size, info);
}
inline cusolverStatus_t orgqr(cusolverDnHandle_t h, int m, int p, int n, float* a, const float* tau, float* work,
                              int size, int* info) {
  return cusolverDnSorgqr(h, m, p, n, a, m, tau, work, size, info);
}
inline cusolverStatus_t orgqr(cusolverDnHandle_t h, int m, int p, int n, double* a, const double* tau, double* work,
                              int size, int* info) {
  return cusolverDnDorgqr(h, m, p, n, a, m, tau, work, size, info);
}

inline int svd_size(cusolverDnHandle_t h, std::size_t m, std::size_t n) {
  int size = 0;
  check_cusolver(cusolverDnDgesvd_bufferSize(h, as_int(std::max(m, n)), as_int(std::min(m, n)), &size),
                 "size of gesvd");
  return size;
}

}  // namespace sestina::cusolver
