// The routines of LAPACK that the host's twins call, by their Fortran names, with one overload for each type.
#pragma once

extern "C" {
void ssyevd_(const char*, const char*, const int*, float*, const int*, float*, float*, const int*, int*, const int*,
             int*);
void dsyevd_(const char*, const char*, const int*, double*, const int*, double*, double*, const int*, int*, const int*,
             int*);
void sgeqrt3_(const int*, const int*, float*, const int*, float*, const int*, int*);
void dgeqrt3_(const int*, const int*, double*, const int*, double*, const int*, int*);
void dgesdd_(const char*, const int*, const int*, double*, const int*, double*, double*, const int*, double*,
             const int*, double*, const int*, int*, int*);
}

namespace sestina::lapack {

// Each returns LAPACK's info: 0 is success. Matrices are column-major.
inline int syevd(int d, float* a, float* values, float* work, int work_size, int* iwork, int iwork_size) {
  int info = 0;
  ssyevd_("V", "L", &d, a, &d, values, work, &work_size, iwork, &iwork_size, &info);
  return info;
}
inline int syevd(int d, double* a, double* values, double* work, int work_size, int* iwork, int iwork_size) {
  int info = 0;
  dsyevd_("V", "L", &d, a, &d, values, work, &work_size, iwork, &iwork_size, &info);
  return info;
}

// Decomposes a narrow A (m, n) by recursion: reflections below the diagonal, their triangle T (n, n).
inline int geqrt3(int m, int n, float* a, int lda, float* t, int ldt) {
  int info = 0;
  sgeqrt3_(&m, &n, a, &lda, t, &ldt, &info);
  return info;
}
inline int geqrt3(int m, int n, double* a, int lda, double* t, int ldt) {
  int info = 0;
  dgeqrt3_(&m, &n, a, &lda, t, &ldt, &info);
  return info;
}

// Decomposes A (m, n) = U (m, k) diag(values) VT (k, n), k = min(m, n). With work_size -1, work[0] becomes the best
// size.
inline int gesdd(int m, int n, double* a, double* values, double* u, double* vt, double* work, int work_size,
                 int* iwork) {
  int info = 0;
  const int k = m < n ? m : n;
  dgesdd_("S", &m, &n, a, &m, values, u, &m, vt, &k, work, &work_size, iwork, &info);
  return info;
}

}  // namespace sestina::lapack
