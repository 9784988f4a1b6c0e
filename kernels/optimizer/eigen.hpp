// Dense decompositions through the vendor library of the space: LAPACK on the host (eigen_host.cpp), always on one
// thread, so that the bits do not depend on how many there are; cuSOLVER on the device (eigen_cuda.cpp); a device
// without such a twin has the host do it (eigen_kokkos.cpp). Scratch comes from the workspace: the functions declare_*
// take what a call takes, and give it back. Matrices are row-major without padding. Numbers that are not finite are the
// caller's business, before and after a call. All calls fence, unless told not to (report_to).
#pragma once
#include <memory>

#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// These checks are the same in every twin: they refuse other shapes than those below, and gaps between rows.
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
template <class A, class V, class S, class I>
void require_eigh_batch(const A& a, const V& vectors, const S& values, const I& info) {
  const std::size_t count = values.extent(0), d = values.extent(1);
  SESTINA_REQUIRE(a.extent(0) == count * d && a.extent(1) == d && vectors.extent(0) == count * d &&
                      vectors.extent(1) == d && info.extent(0) == count,
                  "{} of A ({}, {}), V ({}, {}), {} values, info ({})", count, a.extent(0), a.extent(1),
                  vectors.extent(0), vectors.extent(1), d, info.extent(0));
  require_dense(a);
  require_dense(vectors);
  require_dense(values);
}
// Returns matrix number i of those that are stacked in x, each of so many rows.
template <class M>
M stacked_at(const M& x, std::size_t i, std::size_t rows) {
  return M(x.data() + i * rows * x.extent(1), rows, x.extent(1));
}
template <class A, class Q>
void require_qr_shapes(const A& a, const Q& q) {
  const std::size_t m = a.extent(0), n = a.extent(1), p = q.extent(1);
  SESTINA_REQUIRE(n <= p && p <= m && q.extent(0) == m, "QR of A ({}, {}) into Q ({}, {})", m, n, q.extent(0), p);
  if (p == 0) return;
  require_dense(a);
  require_dense(q);
}
template <class Q>
void require_qr_columns(std::size_t n, const Q& columns) {
  const std::size_t m = columns.extent(1), p = columns.extent(0);
  SESTINA_REQUIRE(n <= p && p <= m, "QR of {} of {} columns of {}", n, p, m);
  if (p > 0) require_dense(columns);
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

// One object per execution-space instance, which holds the handle of the library. Not thread-safe. T is float or
// double. A result of false means that the library found no solution; outputs are then undefined.
template <class Exec>
class Solver {
 public:
  explicit Solver(const Exec& exec);
  ~Solver();
  Solver(Solver&&) noexcept;

  // Solvers of this space that are made from now on decompose on the host, and tell of it as a library would: for
  // whoever has found that the library of the space is wrong here. Returns false where they do so already.
  static bool leave_to_host();

  // Stops waiting for a device from now on: each call returns true, and eigh and svd leave a number in info (1) in the
  // space, 0 where they found a solution; there is no QR without one. An empty vector goes back to waiting. Host
  // libraries answer at once in either case.
  void report_to(Vector<std::int32_t, Exec> info);

  // Decomposes A (d, d) symmetric = V diag(values) V^T: column j of V (d, d) belongs to values(j); values fall.
  template <class T>
  bool eigh(Matrix<const T, Exec> a, Matrix<T, Exec> vectors, Vector<T, Exec> values, Workspace<Exec>&);
  template <class T>
  static void declare_eigh(Workspace<Exec>&, std::size_t d);
  // Decomposes several matrices of one size, which a device does together: A (count d, d) stacked, which is used up, V
  // (count d, d) and values (count, d), each as above, and in info (count) 0 where a solution was found. A device does
  // not wait.
  template <class T>
  void eigh_batch(Matrix<T, Exec> a, Matrix<T, Exec> vectors, Matrix<T, Exec> values, Vector<std::int32_t, Exec> info,
                  Workspace<Exec>&);
  template <class T>
  void declare_eigh_batch(Workspace<Exec>&, std::size_t count, std::size_t d) const;

  // Decomposes A (m, n) = Q R with m >= n into the first p columns of Q as Householder reflections make it, n <= p <=
  // m; columns from n on complete the basis. Q may be A itself when p = n. A matrix of zeros gives columns of the
  // identity.
  template <class T>
  bool qr(Matrix<const T, Exec> a, Matrix<T, Exec> q, Workspace<Exec>&);
  template <class T>
  static void declare_qr(Workspace<Exec>&, std::size_t m, std::size_t n, std::size_t p);
  // Does the same in place where A and Q lie as the libraries have them: row j of columns (p, m) is column j, and A has
  // the first n.
  template <class T>
  bool qr_columns(std::size_t n, Matrix<T, Exec> columns, Workspace<Exec>&);
  template <class T>
  static void declare_qr_columns(Workspace<Exec>&, std::size_t m, std::size_t n, std::size_t p);

  // Decomposes A (m, n) = left diag(values) right^T with k = min(m, n): left (m, k), right (n, k), values fall.
  bool svd(Matrix<const double, Exec> a, Matrix<double, Exec> left, Vector<double, Exec> values,
           Matrix<double, Exec> right, Workspace<Exec>&);
  static void declare_svd(Workspace<Exec>&, std::size_t m, std::size_t n);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Passes over the columns of a basis: Rayleigh quotients, sorting, signs.

// Sets dots(j) to the sum over i of a(i, j) b(i, j), in fp64.
template <class Exec, class T>
void column_dots(const Exec&, Matrix<const T, Exec> a, Matrix<const T, Exec> b, Vector<double, Exec> dots);

// Sets order(j) to the index of the j-th largest key; equal keys keep their order. A NaN counts as -infinity, so that
// the index always lies within the matrix.
template <class Exec>
void order_falling(const Exec&, Vector<const double, Exec> keys, Vector<std::int32_t, Exec> order);

// Sets row j of y (n, m) to column order(j) of x (m, n), or, where the order is empty, to column j; y must not be x.
template <class Exec, class T>
void columns_as_rows(const Exec&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> order, Matrix<T, Exec> y);

// Gives each column the sign that makes its entry of largest size (the first of equal ones) positive.
template <class Exec, class T>
void fix_signs(const Exec&, Matrix<T, Exec> x);

// Symmetric matrices are packed as their lower triangle, row after row: d (d + 1) / 2 numbers. In fp32 nothing is lost,
// in bf16 each number is rounded to nearest.
KOKKOS_INLINE_FUNCTION constexpr std::size_t packed_size(std::size_t d) { return d * (d + 1) / 2; }

// Packs x (d, d) symmetric, of which the lower triangle is read, into packed (d (d + 1) / 2).
template <class Exec>
void pack_symmetric(const Exec&, Matrix<const float, Exec> x, Vector<float, Exec> packed);
template <class Exec>
void pack_symmetric(const Exec&, Matrix<const float, Exec> x, Vector<bf16, Exec> packed);
template <class Exec>
void unpack_symmetric(const Exec&, Vector<const float, Exec> packed, Matrix<float, Exec> x);
template <class Exec>
void unpack_symmetric(const Exec&, Vector<const bf16, Exec> packed, Matrix<float, Exec> x);

}  // namespace sestina
