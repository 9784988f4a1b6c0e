// Dense matrix products through the vendor library of the space: on the host oneDNN, or CBLAS in a build without it
// (host/gemm_host.cpp), on the device cuBLAS (gemm_cuda.cpp), on other devices Kokkos Kernels (gemm_kokkos.hpp).
// gemm_plain is the obvious triple loop, which tests compare them with.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>

#include "kernels/blas/exec.hpp"
#include "kernels/blas/gemm_op.hpp"
#include "kernels/blas/matrix_list.hpp"

namespace sestina {

// Returns the number of elements from one row to the next, for a BLAS: at least 1 and at least a row.
template <class View>
std::int64_t leading_dimension(const View& x) {
  return static_cast<std::int64_t>(std::max<std::size_t>({x.stride(0), x.extent(1), 1}));
}

// The operands of one of several products whose sizes differ (Gemm::grouped).
template <class TA, class TC, class Exec>
struct GroupOperands {
  Matrix<const TA, Exec> a, b;
  Matrix<TC, Exec> c;
};

// Caches what a vendor library needs per shape (oneDNN primitives and their scratchpad, a cuBLAS handle), so that a
// product of a shape seen before allocates nothing. One object per execution-space instance; not thread-safe.
// Exec: Host, Serial (one thread, so that many objects can work side by side) or the device.
// deterministic: fixed output tiles, each a single-threaded call, so the bits do not depend on the thread count.
template <class Exec>
class Gemm {
 public:
  explicit Gemm(const Exec& exec, bool deterministic = false);
  ~Gemm();
  Gemm(Gemm&&) noexcept;

  // C (m, n) = alpha * op_a(A) op_b(B) + beta * C, summed in Acc<TA>. Rows of A, B, C may be padded.
  // (TA, TC) is one of (float, float), (double, double), (bf16, bf16), (bf16, float). C is not read when beta is 0.
  // Does not fence. Throws Error(internal) when the shapes do not fit; zero sizes are allowed.
  template <class TA, class TC>
  void operator()(Op op_a, Op op_b, Acc<TA> alpha, Matrix<const TA, Exec> a, Matrix<const TA, Exec> b, Acc<TA> beta,
                  Matrix<TC, Exec> c);

  // Computes `count` products of one shape. Number i reads and writes what lies i times `apart` elements after a, b and
  // c; none writes what another one reads or writes. A host runs them at the same time, on one thread each, where there
  // are enough of them.
  struct Apart {
    std::size_t a = 0, b = 0, c = 0;
  };
  template <class TA, class TC>
  void batch(std::size_t count, const Apart& apart, Op op_a, Op op_b, Acc<TA> alpha, Matrix<const TA, Exec> a,
             Matrix<const TA, Exec> b, Acc<TA> beta, Matrix<TC, Exec> c);
  // Computes as many products of one shape whose operands lie anywhere: C_i = alpha op_a(A_i) op_b(B_i) + beta C_i.
  // None writes what another one reads or writes. A device's library takes them in one call, a host one after the
  // other, each as the product by itself. Throws Error(internal) where the lists are not equally long.
  template <class TA, class TC>
  void batch(Op op_a, Op op_b, Acc<TA> alpha, const MatrixList<const TA, Exec>& a, const MatrixList<const TA, Exec>& b,
             Acc<TA> beta, const MatrixList<TC, Exec>& c);

  // Computes products whose sizes differ: C_i = alpha op_a(A_i) op_b(B_i) + beta C_i for the `count` operands that
  // each(i) returns, which is called once for each i, in order. None writes what another one reads or writes. Where k
  // is 0, C_i becomes beta C_i. Shapes and types as above. A device's library takes them all in one call (cuBLAS; bf16
  // into float one by one, which it does not know). A host computes as many as fill its threads side by side, each on
  // one thread, and takes the rows of A, on which its libraries prepare products, in powers of two: a few shapes serve
  // all. With fixed tiles the bits of a product are the same in any group.
  template <class TA, class TC, class Each>
  void grouped(std::size_t count, Op op_a, Op op_b, Acc<TA> alpha, Acc<TA> beta, const Each& each) {
    run_group<TA, TC>(
        count, op_a, op_b, alpha, beta,
        [](const void* it, std::size_t i) -> GroupOperands<TA, TC, Exec> { return (*static_cast<const Each*>(it))(i); },
        &each);
  }

  // Calls body(products, item, lane) for each of `items`, host only: as many threads as there are run them at the same
  // time, each with products of its own that take one thread. A lane is a number below lanes() and below `items`; one
  // item at a time has it.
  template <class Body>
  requires is_host<Exec>
  void side_by_side(std::size_t items, const Body& body) {
    run_lanes(
        items,
        [](const void* it, Gemm<Serial>& products, std::size_t item, std::size_t lane) {
          (*static_cast<const Body*>(it))(products, item, lane);
        },
        &body);
  }
  std::size_t lanes() const requires is_host<Exec>;
  const Exec& exec() const requires is_host<Exec>;
  // Returns whether so many items of equal work keep the lanes as busy as a product of all threads does.
  static bool fills(std::size_t items, std::size_t lanes) { return items % lanes == 0 || items >= 4 * lanes; }

  // C (m, m) = alpha * op(A) op(A)^T + beta * C, where C is symmetric: the tiles on and below the diagonal are computed
  // and mirrored, which is little more than half of the work for large m. Tiles do not depend on the thread count, and
  // each is one single-threaded call. A symmetric A is squared in this way too. C must not overlap A.
  // On a device C is one product where m < 8,192, symmetric but for rounding.
  template <class TA, class TC>
  void symmetric(Op op, Acc<TA> alpha, Matrix<const TA, Exec> a, Acc<TA> beta, Matrix<TC, Exec> c);
  // The same of matrices of one shape that lie anywhere.
  template <class TA, class TC>
  void symmetric(Op op, Acc<TA> alpha, const MatrixList<const TA, Exec>& a, Acc<TA> beta,
                 const MatrixList<TC, Exec>& c);

  // Whether products of fp32 may read their operands as tf32 (10 bits of mantissa), which tensor cores multiply; false
  // at first. Hosts, and devices without such a type, go on in fp32.
  void round_to_tf32(bool on);

  // Seconds spent inside products and operations done (2 m n k, half of that where symmetric) since the last reset.
  // Fences only when timing is on.
  struct Count {
    double seconds = 0, flops = 0;
  };
  void time_products(bool on);
  Count take_count();

 private:
  template <class>
  friend class Gemm;  // of a host: products of one thread
  template <class TA, class TC>
  using EachOperands = GroupOperands<TA, TC, Exec> (*)(const void*, std::size_t i);
  template <class TA, class TC>
  void run_group(std::size_t count, Op op_a, Op op_b, Acc<TA> alpha, Acc<TA> beta, EachOperands<TA, TC>,
                 const void* each);
  using LaneBody = void (*)(const void*, Gemm<Serial>&, std::size_t item, std::size_t lane);
  void run_lanes(std::size_t items, LaneBody, const void* body) requires is_host<Exec>;

  struct State;
  std::unique_ptr<State> state_;
};

// The obvious matrix product, the reference that tests compare the vendor libraries with: C = alpha op_a(A) op_b(B) +
// beta C on row-major host memory with leading dimensions lda, ldb, ldc, summed in double.
struct GemmShape {
  std::size_t m = 0, n = 0, k = 0;  // C is (m, n), the sum runs over k
};

template <class TA, class TC>
void gemm_plain(Op op_a, Op op_b, GemmShape shape, double alpha, const TA* a, std::size_t lda, const TA* b,
                std::size_t ldb, double beta, TC* c, std::size_t ldc) {
  const auto at = [](const TA* x, std::size_t ld, Op op, std::size_t row, std::size_t col) {
    return static_cast<double>(op == Op::none ? x[row * ld + col] : x[col * ld + row]);
  };
  for (std::size_t i = 0; i < shape.m; ++i) {
    for (std::size_t j = 0; j < shape.n; ++j) {
      double sum = 0;
      for (std::size_t p = 0; p < shape.k; ++p) sum += at(a, lda, op_a, i, p) * at(b, ldb, op_b, p, j);
      const double old = beta == 0 ? 0 : beta * static_cast<double>(c[i * ldc + j]);
      c[i * ldc + j] = TC(alpha * sum + old);
    }
  }
}

}  // namespace sestina
