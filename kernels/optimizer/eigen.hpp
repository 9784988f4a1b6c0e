// Dense decompositions through the vendor library of the space: LAPACK on the host (eigen_host.cpp), always on one
// thread, so that the bits do not depend on how many there are; cuSOLVER on the device (eigen_cuda.cpp); a device
// without such a twin has the host do it (eigen_kokkos.cpp). Scratch comes from the workspace: the functions declare_*
// take what a call takes, and give it back. Matrices are row-major without padding. Numbers that are not finite are the
// caller's business: look before and after. All fence, unless told not to (report_to).
#pragma once
#include <memory>

#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// What every twin refuses: other shapes than those below, and gaps between rows.
template <class View>
void require_dense(const View& x) {
  SESTINA_REQUIRE(x.extent(0) <= 1 || x.stride(0) == x.extent(1), "rows of {} lie {} apart", x.extent(1), x.stride(0));
}
template <class A, class V, class S>
void require_eigh_shapes(const A& a, const V& vectors, const S& values) {
  const std::size_t d = a.extent(0);
  SESTINA_REQUIRE(a.extent(1) == d && vectors.extent(0) == d && vectors.extent(1) == d && values.extent(0) == d,
                  "A ({}, {}), V ({}, {}), {} values", d, a.extent(1), vectors.extent(0), vectors.extent(1),
                  values.extent(0));
  require_dense(a);
  require_dense(vectors);
}
template <class A, class Q>
void require_qr_shapes(const A& a, const Q& q) {
  const std::size_t m = a.extent(0), n = a.extent(1), p = q.extent(1);
  SESTINA_REQUIRE(n <= p && p <= m && q.extent(0) == m, "QR of A ({}, {}) into Q ({}, {})", m, n, q.extent(0), p);
  if (p == 0) return;
  require_dense(a);
  require_dense(q);
}
template <class A, class L, class S, class R>
void require_svd_shapes(const A& a, const L& left, const S& values, const R& right) {
  const std::size_t m = a.extent(0), n = a.extent(1), k = m < n ? m : n;
  SESTINA_REQUIRE(left.extent(0) == m && left.extent(1) == k && values.extent(0) == k && right.extent(0) == n &&
                      right.extent(1) == k,
                  "A ({}, {}), left ({}, {}), {} values, right ({}, {})", m, n, left.extent(0), left.extent(1),
                  values.extent(0), right.extent(0), right.extent(1));
  if (k > 0) require_dense(a);
}

// One object per execution-space instance, for the handle of the library. Not thread-safe.
// T is float or double. A result of false means that the library found no solution; outputs are then undefined.
template <class Exec>
class Solver {
 public:
  explicit Solver(const Exec& exec);
  ~Solver();
  Solver(Solver&&) noexcept;

  // From now on a device is not waited for: each call returns true, and one that finds no solution adds 1 to
  // failures (1) in the space. Empty: back to waiting. Host libraries answer at once, whatever was said.
  void report_to(Vector<double, Exec> failures);

  // A (d, d) symmetric = V diag(values) V^T: column j of V (d, d) belongs to values(j); values fall.
  template <class T>
  bool eigh(Matrix<const T, Exec> a, Matrix<T, Exec> vectors, Vector<T, Exec> values, Workspace<Exec>&);
  template <class T>
  static void declare_eigh(Workspace<Exec>&, std::size_t d);

  // A (m, n) = Q R with m >= n: the first p columns of Q as Householder reflections make it, n <= p <= m; columns from
  // n on complete the basis. Q may be A itself when p = n. A matrix of zeros gives columns of the identity.
  template <class T>
  bool qr(Matrix<const T, Exec> a, Matrix<T, Exec> q, Workspace<Exec>&);
  template <class T>
  static void declare_qr(Workspace<Exec>&, std::size_t m, std::size_t n, std::size_t p);

  // A (m, n) = left diag(values) right^T with k = min(m, n): left (m, k), right (n, k), values fall.
  bool svd(Matrix<const double, Exec> a, Matrix<double, Exec> left, Vector<double, Exec> values,
           Matrix<double, Exec> right, Workspace<Exec>&);
  static void declare_svd(Workspace<Exec>&, std::size_t m, std::size_t n);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sestina
