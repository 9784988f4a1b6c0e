#include "kernels/optimizer/newton_schulz.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {
namespace {

// Writes n elements of M and returns the sum of squares of u.
KOKKOS_INLINE_FUNCTION double advance_piece(const MomentumStep& s, std::size_t n, const float* __restrict g,
                                            float* __restrict m) {
  for (std::size_t i = 0; i < n; ++i) m[i] = s.keep * m[i] + s.gain * g[i];
  return lane_sum(n, [=](std::size_t i) { return square(s.p * g[i] + s.q * m[i]); });
}

// Sets squares(c) to the chunk sums of the squares of x.
template <class Space>
void sum_squares(const Space& exec, Vector<const float, Space> x, Vector<double, Space> squares) {
  const float* data = x.data();
  sum_pieces(
      "ns_squares", exec, x.extent(0), reduce_chunk, squares, KOKKOS_LAMBDA(std::size_t begin, std::size_t count) {
        return lane_sum(count, [=](std::size_t i) { return square(data[begin + i]); });
      });
}

// Sets inverse(0) to the factor by which u is multiplied.
template <class Space>
void frobenius_inverse(const Space& exec, const NewtonSchulz& ns, Vector<const double, Space> squares,
                       Vector<float, Space> inverse) {
  const double eps = ns.eps;
  const bool add = ns.norm == NewtonSchulzNorm::add;
  sum_all(
      "ns_norm", exec, squares.extent(0), KOKKOS_LAMBDA(std::size_t i) { return squares(i); },
      KOKKOS_LAMBDA(double sum) { inverse(0) = inverse_norm(sum, eps, add); });
}

// Sets factors (m) to what gives each row of u (m, n) the root mean square of their norms (a row without one stays),
// and row_squares (m) to the squares of the rows with it; target (1) is used up.
template <class Space>
void equalize_rows(const Space& exec, double eps, const Blend<Space>& u, std::size_t cols,
                   Vector<double, Space> row_squares, Vector<float, Space> target, Vector<float, Space> factors) {
  const std::size_t rows = factors.extent(0);
  const float *first = u.x.data(), *second = u.y.data();
  const float p = u.p, q = u.q;
  const Kokkos::RangePolicy<Space> all(exec, 0, rows);
  Kokkos::parallel_for(
      "ns_row_squares", all, KOKKOS_LAMBDA(std::size_t i) {
        const float *x = p == 0 ? nullptr : first + i * cols, *y = second + i * cols;
        row_squares(i) = lane_sum(cols, [=](std::size_t j) {
          const double value = static_cast<double>(q) * y[j] + (p == 0 ? 0.0 : static_cast<double>(p) * x[j]);
          return value * value;
        });
      });
  const double share = 1.0 / static_cast<double>(rows);
  sum_all(
      "ns_row_target", exec, rows, KOKKOS_LAMBDA(std::size_t i) { return row_squares(i); },
      KOKKOS_LAMBDA(double sum) { target(0) = static_cast<float>(Kokkos::sqrt(share * sum)); });
  Kokkos::parallel_for(
      "ns_row_factors", all, KOKKOS_LAMBDA(std::size_t i) {
        const double norm = Kokkos::sqrt(row_squares(i));
        factors(i) = norm == 0 ? 1.0f : static_cast<float>(static_cast<double>(target(0)) / Kokkos::max(norm, eps));
        row_squares(i) *= square(factors(i));
      });
}

// Sets x to u, each row times its factor (where there are any), divided by its norm, rounded, in wide form.
template <class T, class Space>
void normalize(const Space& exec, const NewtonSchulz& ns, const Blend<Space>& u, std::size_t rows, std::size_t cols,
               Vector<const double, Space> squares, const NewtonSchulzScratch<T, Space>& scratch) {
  const Vector<float, Space> inverse = scratch.inverse, factors = scratch.row_factors;
  if (ns.equal_rows) equalize_rows<Space>(exec, ns.eps, u, cols, scratch.row_squares, inverse, factors);
  frobenius_inverse<Space>(exec, ns, ns.equal_rows ? Vector<const double, Space>(scratch.row_squares) : squares,
                           inverse);
  const bool has_factors = ns.equal_rows;
  const float *first = u.x.data(), *second = u.y.data();
  const float p = u.p, q = u.q;
  fill_wide(
      "ns_normalize", exec, scratch.x, rows, cols,
      KOKKOS_LAMBDA(std::size_t i, std::size_t j, std::size_t count, T * to) {
        const std::size_t at = i * cols + j;
        const float scale = has_factors ? inverse(0) * factors(i) : inverse(0);
        scaled_blend(count, scale, p, p == 0 ? nullptr : first + at, q, second + at, to);
      });
}

// Gives x the Frobenius norm of an orthogonal matrix of its shape; zero stays zero.
template <class T, class Space>
void snap_norm(const Space& exec, Matrix<T, Space> x, Vector<double, Space> sums, Vector<float, Space> factor) {
  const std::size_t n = x.size();
  const auto want = static_cast<double>(x.extent(0));
  T* data = x.data();
  sum_pieces(
      "ns_snap_squares", exec, n, reduce_chunk, sums, KOKKOS_LAMBDA(std::size_t begin, std::size_t count) {
        return lane_sum(count, [=](std::size_t i) { return square(data[begin + i]); });
      });
  sum_all(
      "ns_snap_norm", exec, chunk_count(n), KOKKOS_LAMBDA(std::size_t i) { return sums(i); },
      KOKKOS_LAMBDA(double sum) { factor(0) = sum > 0 ? static_cast<float>(Kokkos::sqrt(want / sum)) : 1.0f; });
  for_elements(
      "ns_snap", exec, 1, n, KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) data[i] = T(factor(0) * static_cast<float>(data[i]));
      });
}

// Returns a I + b A + c A^2 with A = X X^T, in one of the two matrices given.
template <class T, class Space>
Matrix<T, Space> polynomial(const Space& exec, Gemm<Space>& gemm, const NewtonSchulzStep& step,
                            Matrix<const T, Space> x, Matrix<T, Space> gram, Matrix<T, Space> square) {
  gemm.template symmetric<T, T>(Op::none, gram_factor(step), x, 0, gram);
  return step_polynomial<T>(exec, gemm, step, gram, square);
}

// Returns the polynomial of the first step of f X from X, where f gives X the gram norm of 1.
template <class T, class Space>
Matrix<T, Space> first_polynomial(const Space& exec, Gemm<Space>& gemm, const NewtonSchulz& ns,
                                  const NewtonSchulzScratch<T, Space>& scratch) {
  const NewtonSchulzStep& step = ns.steps.front();
  gemm.template symmetric<T, T>(Op::none, 1, scratch.x, 0, scratch.gram);
  gram_norm_factor<T, Space>(exec, ns, scratch.gram, scratch.inverse, scratch.sums, scratch.factor);
  if (step.c != 0) gemm.template symmetric<T, T>(Op::none, 1, scratch.gram, 0, scratch.square);
  form_polynomial<T, Space>(exec, step, scratch.gram, scratch.factor, scratch.square);
  return scratch.square;
}

template <class T, class Space>
Matrix<T, Space> plain_newton_schulz(const Space& exec, Gemm<Space>& gemm, const NewtonSchulz& ns,
                                     const NewtonSchulzScratch<T, Space>& scratch) {
  Matrix<T, Space> x = scratch.x, y = scratch.y;
  for (std::size_t i = 0; i < ns.steps.size(); ++i) {
    const Matrix<const T, Space> p = i == 0 && ns.gram_norm
                                         ? first_polynomial<T>(exec, gemm, ns, scratch)
                                         : polynomial<T>(exec, gemm, ns.steps[i], x, scratch.gram, scratch.square);
    gemm.template operator()<T, T>(Op::none, Op::none, 1, p, x, 0, y);
    std::swap(x, y);
  }
  return x;
}

}  // namespace

template <class Space>
void advance_momentum(const Space& exec, const MomentumStep& step, Vector<const float, Space> gradient,
                      Vector<float, Space> momentum, Vector<double, Space> squares) {
  const std::size_t n = momentum.extent(0);
  SESTINA_REQUIRE(gradient.extent(0) == n && squares.extent(0) == chunk_count(n),
                  "gradient of {}, momentum {}, {} chunk sums", gradient.extent(0), n, squares.extent(0));
  const float* g = gradient.data();
  float* m = momentum.data();
  sum_pieces(
      "momentum", exec, n, reduce_chunk, squares,
      KOKKOS_LAMBDA(std::size_t begin, std::size_t count) { return advance_piece(step, count, g + begin, m + begin); });
}

template <class T, class Space>
Matrix<const T, Space> newton_schulz(const Space& exec, Gemm<Space>& gemm, Workspace<Space>& workspace,
                                     const NewtonSchulz& ns, const Blend<Space>& u, std::size_t rows, std::size_t cols,
                                     Vector<const double, Space> squares) {
  SESTINA_REQUIRE(u.y.extent(0) == rows * cols && (u.p == 0 || u.x.extent(0) == rows * cols) &&
                      squares.extent(0) == chunk_count(rows * cols),
                  "{} x {}: vectors of {} and {}, {} chunk sums", rows, cols, u.x.extent(0), u.y.extent(0),
                  squares.extent(0));
  const NewtonSchulzScratch<T, Space> scratch(workspace, ns, rows, cols);
  if (scratch.x.size() == 0) return scratch.x;
  normalize<T, Space>(exec, ns, u, rows, cols, squares, scratch);
  const bool gram = takes_gram_form(ns, scratch.x.extent(0), scratch.x.extent(1));
  const Matrix<T, Space> x = gram ? gram_newton_schulz<T, Space>(exec, gemm, ns, scratch)
                                  : plain_newton_schulz<T, Space>(exec, gemm, ns, scratch);
  if (ns.snap) snap_norm<T, Space>(exec, x, scratch.sums, scratch.factor);
  return x;
}

namespace {

template <class T, class Space>
void orthogonalize_as(const Space& exec, Gemm<Space>& gemm, Workspace<Space>& workspace, const NewtonSchulz& ns,
                      Matrix<const float, Space> input, Matrix<float, Space> output) {
  const std::size_t rows = input.extent(0), cols = input.extent(1);
  const Vector<const float, Space> x(input.data(), rows * cols);
  const Vector<double, Space> squares = SumScratch<Space>(workspace, rows * cols).chunks;
  sum_squares(exec, x, squares);
  const Matrix<const T, Space> result = newton_schulz<T>(exec, gemm, workspace, ns, Blend<Space>{{}, x}, rows, cols,
                                                         Vector<const double, Space>(squares));
  float* out = output.data();
  for_each_row(
      "ns_result", exec, result, rows, cols,
      KOKKOS_LAMBDA(std::size_t i, std::size_t j, std::size_t count, const T* from) {
        for (std::size_t c = 0; c < count; ++c) out[i * cols + j + c] = static_cast<float>(from[c]);
      });
}

}  // namespace

template <class Space>
void orthogonalize(const Space& exec, Gemm<Space>& gemm, Workspace<Space>& workspace, const NewtonSchulz& ns,
                   bool in_bf16, Matrix<const float, Space> input, Matrix<float, Space> output) {
  SESTINA_REQUIRE(input.extent(0) == output.extent(0) && input.extent(1) == output.extent(1) &&
                      input.span_is_contiguous() && output.span_is_contiguous(),
                  "({}, {}) into ({}, {}), or rows are padded", input.extent(0), input.extent(1), output.extent(0),
                  output.extent(1));
  if (input.size() == 0) return;
  const auto frame = workspace.frame();
  if (in_bf16)
    orthogonalize_as<bf16>(exec, gemm, workspace, ns, input, output);
  else
    orthogonalize_as<float>(exec, gemm, workspace, ns, input, output);
}

template <class Space>
void declare_orthogonalize(Workspace<Space>& workspace, std::size_t rows, std::size_t cols, const NewtonSchulz& ns) {
  const auto frame = workspace.frame();
  const SumScratch<Space> squares(workspace, rows * cols);
  declare<NewtonSchulzScratch<float, Space>>(workspace, ns, rows, cols);
  declare<NewtonSchulzScratch<bf16, Space>>(workspace, ns, rows, cols);
}

#define SESTINA_NEWTON_SCHULZ_TYPE(Space, T)                                                                     \
  template Matrix<const T, Space> newton_schulz<T, Space>(const Space&, Gemm<Space>&, Workspace<Space>&,         \
                                                          const NewtonSchulz&, const Blend<Space>&, std::size_t, \
                                                          std::size_t, Vector<const double, Space>);
#define SESTINA_NEWTON_SCHULZ(Space)                                                                           \
  SESTINA_NEWTON_SCHULZ_TYPE(Space, float)                                                                     \
  SESTINA_NEWTON_SCHULZ_TYPE(Space, bf16)                                                                      \
  template void advance_momentum<Space>(const Space&, const MomentumStep&, Vector<const float, Space>,         \
                                        Vector<float, Space>, Vector<double, Space>);                          \
  template void orthogonalize<Space>(const Space&, Gemm<Space>&, Workspace<Space>&, const NewtonSchulz&, bool, \
                                     Matrix<const float, Space>, Matrix<float, Space>);                        \
  template void declare_orthogonalize<Space>(Workspace<Space>&, std::size_t, std::size_t, const NewtonSchulz&);
SESTINA_INSTANTIATE_LANES(SESTINA_NEWTON_SCHULZ)

}  // namespace sestina
