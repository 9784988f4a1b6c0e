// Gemm through Kokkos Kernels, written for any execution space: the twin of a device whose vendor library has none here
// (gemm_kokkos.cpp). Tests compile it for the host (regression/unit/portable). Kokkos Kernels calls the vendor's
// library where it was built with one, and brings kernels of its own for the rest.
//
// It sums in the type of its operands: bf16 is widened to float first, into buffers that grow with the shapes seen.
// Row-major C = op_a(A) op_b(B) is column-major C^T = op_b(B)^T op_a(A)^T, so A and B change places, as in
// gemm_cuda.cpp. Columns have another reason too: KokkosBlas makes a vector of a result with one column, without regard
// to the distance of its rows.
#pragma once
#include <KokkosBlas3_gemm.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/product_sizes.hpp"

namespace sestina {
namespace portable {

template <class T, class Exec, class Layout>
using Operand = Kokkos::View<T**, Layout, typename Exec::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

// by_rows views X (rows, cols) as it lies; by_columns views X^T (cols, rows), whose columns are the rows of X.
template <class Exec, class T>
Operand<T, Exec, Kokkos::LayoutRight> by_rows(Matrix<T, Exec> x) {
  const Operand<T, Exec, Kokkos::LayoutRight> wide(x.data(), x.extent(0), int_leading(x));
  return Kokkos::subview(wide, Kokkos::ALL, std::make_pair(std::size_t{0}, x.extent(1)));
}
template <class Exec, class T>
Operand<T, Exec, Kokkos::LayoutLeft> by_columns(Matrix<T, Exec> x) {
  const Operand<T, Exec, Kokkos::LayoutLeft> wide(x.data(), int_leading(x), x.extent(0));
  return Kokkos::subview(wide, std::make_pair(std::size_t{0}, x.extent(1)), Kokkos::ALL);
}

inline const char* flag(Op op) { return op == Op::none ? "N" : "T"; }
inline Op other(Op op) { return op == Op::none ? Op::transpose : Op::none; }

// With `fixed` the order of sums is always the same. KokkosBlas adds up small results atomically where its second
// operand alone is not transposed, and a vendor's library may do the same: operands of different layouts are left to
// kernels of its own, which sum in one order, and the second one is given in the layout that makes it a transposed one.
template <class Exec, class T>
void product(const Exec& exec, bool fixed, Op op_a, Op op_b, T alpha, Matrix<const T, Exec> a, Matrix<const T, Exec> b,
             T beta, Matrix<T, Exec> c) {
  const auto result = by_columns<Exec, T>(c);
  const auto a_columns = by_columns<Exec, const T>(a), b_columns = by_columns<Exec, const T>(b);
  if (!fixed) {
    KokkosBlas::gemm(exec, flag(op_b), flag(op_a), alpha, b_columns, a_columns, beta, result);
  } else if (op_a == Op::none) {
    KokkosBlas::gemm(exec, flag(op_b), "T", alpha, b_columns, by_rows<Exec, const T>(a), beta, result);
  } else {
    KokkosBlas::gemm(exec, flag(other(op_b)), "T", alpha, by_rows<Exec, const T>(b), a_columns, beta, result);
  }
}

// Sets to (m, n) = To(beta * from), without reading `from` where beta is 0.
template <class Exec, class From, class To>
static void scaled_copy(const Exec& exec, Acc<From> beta, Matrix<const From, Exec> from, Matrix<To, Exec> to) {
  for_elements(
      "scaled_copy", exec, to.extent(0), to.extent(1),
      KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        for (std::size_t j = begin; j < end; ++j)
          to(i, j) = To(beta == 0 ? Acc<From>(0) : beta * static_cast<Acc<From>>(from(i, j)));
      });
}

}  // namespace portable

template <class Exec>
struct Gemm<Exec>::State {
  Exec exec;
  bool deterministic = false;
  bool timing = false;
  Count count;
  std::chrono::steady_clock::time_point start;
  using Wide = Kokkos::View<float*, typename Exec::memory_space>;
  Wide wide[3];  // A, B and C in float

  Matrix<float, Exec> buffer(int slot, std::size_t rows, std::size_t cols) {
    if (wide[slot].size() < rows * cols) {
      exec.fence("gemm");  // the old memory may still be in use
      wide[slot] = Wide(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::gemm_wide"), rows * cols);
    }
    return Matrix<float, Exec>(wide[slot].data(), rows, cols);
  }
  Matrix<const float, Exec> widened(int slot, Matrix<const bf16, Exec> x) {
    const Matrix<float, Exec> to = buffer(slot, x.extent(0), x.extent(1));
    portable::scaled_copy<Exec, bf16, float>(exec, 1, x, to);
    return to;
  }

  template <class T>
  void run(bool fixed, Op op_a, Op op_b, T alpha, Matrix<const T, Exec> a, Matrix<const T, Exec> b, T beta,
           Matrix<T, Exec> c) {
    portable::product<Exec, T>(exec, fixed, op_a, op_b, alpha, a, b, beta, c);
  }
  void run(bool fixed, Op op_a, Op op_b, float alpha, Matrix<const bf16, Exec> a, Matrix<const bf16, Exec> b,
           float beta, Matrix<float, Exec> c) {
    portable::product<Exec, float>(exec, fixed, op_a, op_b, alpha, widened(0, a), widened(1, b), beta, c);
  }
  void run(bool fixed, Op op_a, Op op_b, float alpha, Matrix<const bf16, Exec> a, Matrix<const bf16, Exec> b,
           float beta, Matrix<bf16, Exec> c) {
    const Matrix<float, Exec> sum = buffer(2, c.extent(0), c.extent(1));
    if (beta != 0) portable::scaled_copy<Exec, bf16, float>(exec, 1, c, sum);
    run(fixed, op_a, op_b, alpha, a, b, beta, sum);
    portable::scaled_copy<Exec, float, bf16>(exec, 1, sum, c);
  }

  void begin() {
    if (!timing) return;
    exec.fence("gemm");
    start = std::chrono::steady_clock::now();
  }
  void end() {
    if (!timing) return;
    exec.fence("gemm");
    count.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

template <class Exec>
Gemm<Exec>::Gemm(const Exec& exec, bool deterministic) : state_(std::make_unique<State>()) {
  state_->exec = exec;
  state_->deterministic = deterministic;
}
template <class Exec>
Gemm<Exec>::~Gemm() = default;
template <class Exec>
Gemm<Exec>::Gemm(Gemm&&) noexcept = default;

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::operator()(Op op_a, Op op_b, Acc<TA> alpha, Matrix<const TA, Exec> a, Matrix<const TA, Exec> b,
                            Acc<TA> beta, Matrix<TC, Exec> c) {
  const auto [m, n, k] = int_product_sizes(op_a, op_b, a, b, c);
  if (m == 0 || n == 0) return;
  state_->count.flops += 2.0 * double(m) * double(n) * double(k);
  state_->begin();
  if (k == 0)
    portable::scaled_copy<Exec, TC, TC>(state_->exec, Acc<TC>(beta), c, c);
  else
    state_->run(state_->deterministic, op_a, op_b, alpha, a, b, beta, c);
  state_->end();
}

// Runs one item after the other: this form is on the host only for tests.
template <class Exec>
std::size_t Gemm<Exec>::lanes() const requires is_host<Exec> {
  return 1;
}
template <class Exec>
const Exec& Gemm<Exec>::exec() const requires is_host<Exec> {
  return state_->exec;
}
template <class Exec>
void Gemm<Exec>::run_lanes(std::size_t items, LaneBody call, const void* body) requires is_host<Exec> {
  Gemm<Serial> products{Serial()};
  for (std::size_t item = 0; item < items; ++item) {
    call(body, products, item, 0);
    state_->count.flops += products.take_count().flops;
  }
}

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::batch(std::size_t count, const Apart& apart, Op op_a, Op op_b, Acc<TA> alpha, Matrix<const TA, Exec> a,
                       Matrix<const TA, Exec> b, Acc<TA> beta, Matrix<TC, Exec> c) {
  const auto advanced = [](const auto& x, std::size_t by) {
    auto moved = x;
    moved.assign_data(x.data() + by);
    return moved;
  };
  for (std::size_t i = 0; i < count; ++i)
    (*this).template operator()<TA, TC>(op_a, op_b, alpha, advanced(a, i * apart.a), advanced(b, i * apart.b), beta,
                                        advanced(c, i * apart.c));
}

// Computes the tiles on and below the diagonal, as in gemm_cuda.cpp, each summed in one order.
template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::symmetric(Op op, Acc<TA> alpha, Matrix<const TA, Exec> a, Acc<TA> beta, Matrix<TC, Exec> c) {
  constexpr std::size_t tile = 1024, parts = 2;
  const bool plain = op == Op::none;
  const std::size_t m = a.extent(plain ? 0 : 1), size = m >= parts * tile ? tile : std::max<std::size_t>(m, 1);
  SESTINA_REQUIRE(c.extent(0) == m && c.extent(1) == m, "symmetric product of A ({}, {}){} into C ({}, {})",
                  a.extent(0), a.extent(1), plain ? "" : "^T", c.extent(0), c.extent(1));
  const auto range = [m, size](std::size_t begin) { return std::make_pair(begin, std::min(begin + size, m)); };
  const auto slice = [&](std::size_t begin) -> Matrix<const TA, Exec> {
    if (plain) return Kokkos::subview(a, range(begin), Kokkos::ALL);
    return Kokkos::subview(a, Kokkos::ALL, range(begin));
  };
  const bool deterministic = std::exchange(state_->deterministic, true);
  for (std::size_t row = 0; row < m; row += size)
    for (std::size_t col = 0; col <= row; col += size)
      (*this).template operator()<TA, TC>(op, plain ? Op::transpose : Op::none, alpha, slice(row), slice(col), beta,
                                          Kokkos::subview(c, range(row), range(col)));
  state_->deterministic = deterministic;
  if (m > 1) mirror_lower<Exec, TC>(state_->exec, c);
}

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::batch(Op op_a, Op op_b, Acc<TA> alpha, const MatrixList<const TA, Exec>& a,
                       const MatrixList<const TA, Exec>& b, Acc<TA> beta, const MatrixList<TC, Exec>& c) {
  require_equal_counts(a, b, c);
  for (std::size_t i = 0; i < c.count; ++i)
    (*this).template operator()<TA, TC>(op_a, op_b, alpha, a[i], b[i], beta, c[i]);
}

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::run_group(std::size_t count, Op op_a, Op op_b, Acc<TA> alpha, Acc<TA> beta, EachOperands<TA, TC> next,
                           const void* each) {
  for (std::size_t i = 0; i < count; ++i) {
    const GroupOperands<TA, TC, Exec> x = next(each, i);
    (*this).template operator()<TA, TC>(op_a, op_b, alpha, x.a, x.b, beta, x.c);
  }
}

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::symmetric(Op op, Acc<TA> alpha, const MatrixList<const TA, Exec>& a, Acc<TA> beta,
                           const MatrixList<TC, Exec>& c) {
  require_equal_counts(a, a, c);
  for (std::size_t i = 0; i < c.count; ++i) symmetric<TA, TC>(op, alpha, a[i], beta, c[i]);
}

template <class Exec>
void Gemm<Exec>::round_to_tf32(bool) {}
template <class Exec>
void Gemm<Exec>::time_products(bool on) {
  state_->timing = on;
}
template <class Exec>
typename Gemm<Exec>::Count Gemm<Exec>::take_count() {
  return std::exchange(state_->count, Count{});
}

}  // namespace sestina

// Explicit instantiations for a space, in namespace sestina.
#define SESTINA_KOKKOS_GEMM_TYPES(Exec, TA, TC)                                                                     \
  template void Gemm<Exec>::operator()<TA, TC>(Op, Op, Acc<TA>, Matrix<const TA, Exec>, Matrix<const TA, Exec>,     \
                                               Acc<TA>, Matrix<TC, Exec>);                                          \
  template void Gemm<Exec>::batch<TA, TC>(std::size_t, const Apart&, Op, Op, Acc<TA>, Matrix<const TA, Exec>,       \
                                          Matrix<const TA, Exec>, Acc<TA>, Matrix<TC, Exec>);                       \
  template void Gemm<Exec>::batch<TA, TC>(Op, Op, Acc<TA>, const MatrixList<const TA, Exec>&,                       \
                                          const MatrixList<const TA, Exec>&, Acc<TA>, const MatrixList<TC, Exec>&); \
  template void Gemm<Exec>::run_group<TA, TC>(std::size_t, Op, Op, Acc<TA>, Acc<TA>, EachOperands<TA, TC>,          \
                                              const void*);                                                         \
  template void Gemm<Exec>::symmetric<TA, TC>(Op, Acc<TA>, Matrix<const TA, Exec>, Acc<TA>, Matrix<TC, Exec>);      \
  template void Gemm<Exec>::symmetric<TA, TC>(Op, Acc<TA>, const MatrixList<const TA, Exec>&, Acc<TA>,              \
                                              const MatrixList<TC, Exec>&);
#define SESTINA_KOKKOS_GEMM(Exec)                 \
  template class Gemm<Exec>;                      \
  SESTINA_KOKKOS_GEMM_TYPES(Exec, float, float)   \
  SESTINA_KOKKOS_GEMM_TYPES(Exec, double, double) \
  SESTINA_KOKKOS_GEMM_TYPES(Exec, bf16, bf16)     \
  SESTINA_KOKKOS_GEMM_TYPES(Exec, bf16, float)
