// Orthogonalisation by Newton-Schulz iteration: U = P S Q^T, its SVD, becomes about P Q^T, by matrix products only. One
// step is X = a X + (b A + c A^2) X with A = X X^T (newton_schulz_step.hpp). The work is done in wide form: the
// transpose where rows > cols, so that A is the smaller of the two Gram matrices. Stored as T (float or bf16), summed
// in float, the norm in double over fixed chunks. Another form multiplies Gram matrices (newton_schulz_gram.cpp).
// newton_schulz_step.hpp keeps the obvious loops next to it.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "kernels/blas/gemm.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/optimizer/newton_schulz_step.hpp"

namespace sestina {

// The vector p x + q y (n), formed where it is read. With p = 0, x is not read and may be empty.
template <class Space>
struct Blend {
  Vector<const float, Space> x, y;
  float p = 0, q = 1;
};

// The momentum of Muon in one pass: M = keep M + gain G, and the squares of u = p G + q M summed by chunks. `clip` is
// the factor of the gradient.
struct MomentumStep {
  float keep = 0, gain = 0, p = 0, q = 0;
};
inline MomentumStep momentum_step(const MomentumRule& rule, double clip) {
  return {static_cast<float>(rule.keep), static_cast<float>(clip * rule.gain), static_cast<float>(clip * rule.p),
          static_cast<float>(rule.q)};
}
template <class Space>
void advance_momentum(const Space&, const MomentumStep&, Vector<const float, Space> gradient,
                      Vector<float, Space> momentum, Vector<double, Space> squares);

// Orthogonalises u, taken as (rows, cols), whose squares summed by chunks are `squares`. The result lies in the
// workspace until the caller's frame ends, in wide form: (min(rows, cols), max(rows, cols)). Zero gives zero. Does not
// fence. The bits do not depend on the number of threads when the products are deterministic.
template <class T, class Space>
Matrix<const T, Space> newton_schulz(const Space&, Gemm<Space>&, Workspace<Space>&, const NewtonSchulz&,
                                     const Blend<Space>& u, std::size_t rows, std::size_t cols,
                                     Vector<const double, Space> squares);
// Memory that newton_schulz takes; the chunk sums are the caller's. What the form or a key does not need is (0, 0).
template <class T, class Space>
struct NewtonSchulzScratch {
  NewtonSchulzScratch(Workspace<Space>& workspace, const NewtonSchulz& ns, std::size_t rows, std::size_t cols) {
    const std::size_t s = std::min(rows, cols), l = std::max(rows, cols);
    x = workspace.template take<T>(s, l);
    y = workspace.template take<T>(s, l);
    if (takes_gram_form(ns, s, l)) {
      for (Matrix<float, Space>& part : parts) part = workspace.template take<float>(s, s);
    } else {
      gram = workspace.template take<T>(s, s);
      square = workspace.template take<T>(s, s);
    }
    inverse = workspace.template take<float>(1);
    if (ns.gram_norm || ns.snap) {
      sums = workspace.template take<double>(chunk_count(ns.snap ? s * l : s * s));
      factor = workspace.template take<float>(1);
    }
    if (!ns.equal_rows) return;
    row_squares = workspace.template take<double>(rows);
    row_factors = workspace.template take<float>(rows);
  }
  Matrix<T, Space> x, y, gram, square;
  std::array<Matrix<float, Space>, 5> parts;  // of the gram form
  Vector<float, Space> inverse, factor, row_factors;
  Vector<double, Space> sums, row_squares;
};
// Takes the most that newton_schulz takes in either precision, or in bf16 alone; held until the caller's frame ends.
template <class Space>
void take_newton_schulz(Workspace<Space>& workspace, const NewtonSchulz& ns, bool in_bf16, std::size_t rows,
                        std::size_t cols) {
  if (in_bf16)
    NewtonSchulzScratch<bf16, Space>(workspace, ns, rows, cols);
  else
    NewtonSchulzScratch<float, Space>(workspace, ns, rows, cols);
}

// Sets output (m, n) to Newton-Schulz of input (m, n), both without padding; in_bf16: products and storage in bf16.
template <class Space>
void orthogonalize(const Space&, Gemm<Space>&, Workspace<Space>&, const NewtonSchulz&, bool in_bf16,
                   Matrix<const float, Space> input, Matrix<float, Space> output);
template <class Space>
void declare_orthogonalize(Workspace<Space>&, std::size_t rows, std::size_t cols,
                           const NewtonSchulz& = {});  // in either precision

// Newton-Schulz iteration of a matrix whose rows, or columns, are sharded over several ranks. Shards stay where they
// lie: the Gram matrix whose sum runs over the cut side, X^T X where rows are cut and X X^T where columns are, is the
// sum of the shards' own, and with it every rank takes the step of its shard (the "distributed" mode of NVIDIA's
// tensor-parallel Muon). Ranks exchange the norm and, for each step, one such matrix.
enum class CutSide { rows, cols };

// The functions that sum over the ranks, in place; all ranks receive the same bits.
template <class Space>
struct ShardSums {
  std::function<void(Vector<double, Space>)> norm;  // (1)
  std::function<void(Vector<float, Space>)> gram;   // (side * side), in float whatever the shards are stored as
  // Every rank forms the whole polynomial of the Gram matrix, its square included; or, with several squarers, rank
  // number `squarer` of them forms rows [side squarer / squarers, side (squarer + 1) / squarers), and these functions
  // put the rows of all of them together in place. So the parts of all ranks are no more work than the matrix.
  std::size_t squarer = 0, squarers = 1;
  std::function<void(Matrix<float, Space>)> rows_float = {};
  std::function<void(Matrix<bf16, Space>)> rows_bf16 = {};
};

// Does the work of newton_schulz for the shard u (rows, cols) with the chunk sums of its own squares. counted is false
// where another rank holds the same shard and enters it into the sums. The result is the shard of the orthogonalised
// matrix, as it lies in the matrix: (rows, cols). All ranks must call it, those with an empty shard too.
template <class T, class Space>
Matrix<const T, Space> newton_schulz_shard(const Space&, Gemm<Space>&, Workspace<Space>&, const NewtonSchulz&,
                                           const Blend<Space>& u, std::size_t rows, std::size_t cols, CutSide,
                                           Vector<const double, Space> squares, bool counted, const ShardSums<Space>&);
// Memory that newton_schulz_shard takes; the chunk sums are the caller's.
template <class T, class Space>
struct NewtonSchulzShardScratch {
  NewtonSchulzShardScratch(Workspace<Space>& workspace, std::size_t rows, std::size_t cols, CutSide cut) {
    const std::size_t side = cut == CutSide::rows ? cols : rows;
    x = workspace.template take<T>(rows, cols);
    y = workspace.template take<T>(rows, cols);
    whole = workspace.template take<float>(side, side);
    if constexpr (std::is_same_v<T, float>)
      gram = whole;
    else
      gram = workspace.template take<T>(side, side);
    square = workspace.template take<T>(side, side);
    inverse = workspace.template take<float>(1);
    total = workspace.template take<double>(1);
  }
  Matrix<T, Space> x, y, gram, square;  // gram as it is multiplied
  Matrix<float, Space> whole;           // gram as it is summed
  Vector<float, Space> inverse;
  Vector<double, Space> total;
};

// The gram form of the iteration on X, which lies normalised in scratch.x (newton_schulz_gram.cpp). Returns the result,
// in scratch.x or scratch.y.
template <class T, class Space>
Matrix<T, Space> gram_newton_schulz(const Space&, Gemm<Space>&, const NewtonSchulz&,
                                    const NewtonSchulzScratch<T, Space>&);

// The pieces that newton_schulz.cpp (a whole matrix), newton_schulz_gram.cpp and newton_schulz_shard.cpp (shards) use.

// Returns the factor by which u is multiplied. Zero stays zero also without eps.
KOKKOS_INLINE_FUNCTION float inverse_norm(double squares, double eps, bool add) {
  const double norm = Kokkos::sqrt(squares);
  const double by = add ? norm + eps : Kokkos::max(norm, eps);
  constexpr double largest = std::numeric_limits<float>::max();
  if (squares != squares) return static_cast<float>(squares);
  return static_cast<float>(by * largest > 1 ? 1 / by : largest);
}

// Returns the factor f that gives X the norm ||X X^T||^(1/2) of 1 from the squares of X X^T; a matrix of zeros stays.
KOKKOS_INLINE_FUNCTION float norm_factor(double gram_squares, double eps, bool add) {
  return gram_squares > 0 ? inverse_norm(Kokkos::sqrt(gram_squares), eps, add) : 1.0f;
}

// Sets to = scale (p x + q y), rounded. x may be null with p = 0.
template <class T>
KOKKOS_INLINE_FUNCTION void scaled_blend(std::size_t n, float scale, float p, const float* __restrict x, float q,
                                         const float* __restrict y, T* __restrict to) {
  const float first = scale * p, second = scale * q;
  if (p == 0) {
    for (std::size_t i = 0; i < n; ++i) to[i] = T(second * y[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) to[i] = T(first * x[i] + second * y[i]);
  }
}

template <class T, class Space>
static void add_to_diagonal(const Space& exec, float value, Matrix<T, Space> a) {
  T* data = a.data();
  const std::size_t next = a.extent(0) + 1;
  Kokkos::parallel_for(
      "ns_diagonal", Kokkos::RangePolicy<Space>(exec, 0, a.extent(0)),
      KOKKOS_LAMBDA(std::size_t i) { data[i * next] = T(static_cast<float>(data[i * next]) + value); });
}

template <class T, class Space>
static void copy_gram(const Space& exec, Matrix<const T, Space> from, Matrix<T, Space> to) {
  constexpr std::size_t length = is_host<Space> ? 8192 : 1;
  const std::size_t n = from.size();
  const T* source = from.data();
  T* target = to.data();
  Kokkos::parallel_for(
      "ns_copy", Kokkos::RangePolicy<Space>(exec, 0, (n + length - 1) / length), KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t end = Kokkos::min(n, (piece + 1) * length);
        for (std::size_t i = piece * length; i < end; ++i) target[i] = source[i];
      });
}

// Sets factor(0) = f to the factor that gives X, already times inverse(0), the norm ||X X^T||^(1/2) of 1, from the Gram
// matrix A = X X^T; sums is scratch. Zero stays zero.
template <class T, class Space>
static void gram_norm_factor(const Space& exec, const NewtonSchulz& ns, Matrix<const T, Space> gram,
                             Vector<const float, Space> inverse, Vector<double, Space> sums,
                             Vector<float, Space> factor) {
  const T* a = gram.data();
  const std::size_t n = gram.size();
  const double eps = ns.eps;
  const bool add = ns.norm == NewtonSchulzNorm::add;
  sum_pieces(
      "ns_gram_squares", exec, n, reduce_chunk, sums, KOKKOS_LAMBDA(std::size_t begin, std::size_t count) {
        return lane_sum(count, [=](std::size_t i) { return square(a[begin + i]); });
      });
  sum_all(
      "ns_gram_norm", exec, chunk_count(n), KOKKOS_LAMBDA(std::size_t i) { return sums(i); },
      KOKKOS_LAMBDA(double sum) { factor(0) = norm_factor(sum, eps * static_cast<double>(inverse(0)), add); });
}

// Sets p = f (a I + b f^2 A + c f^4 S) for the step of f X from A = X X^T, with S = A^2 in p, which is not read where
// c = 0. factor (1) holds f; (0): it is 1.
template <class T, class Space>
static void form_polynomial(const Space& exec, const NewtonSchulzStep& step, Matrix<const T, Space> gram,
                            Vector<const float, Space> factor, Matrix<T, Space> p) {
  const double a = step.a, b = step.b, c = step.c;
  const bool has_factor = factor.extent(0) != 0;
  const std::size_t d = p.extent(0);
  const T* first = gram.data();
  T* to = p.data();
  // The sums of three are in double: however they are ordered, they are the same float.
  for_elements(
      "ns_polynomial", exec, d, d, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const double f = has_factor ? static_cast<double>(factor(0)) : 1.0, cube = f * f * f;
        const double linear = b * cube, squared = c * cube * f * f;
        for (std::size_t j = begin; j < end; ++j) {
          const std::size_t at = i * d + j;
          double value = linear * static_cast<double>(static_cast<float>(first[at])) + (i == j ? a * f : 0.0);
          if (c != 0) value += squared * static_cast<double>(static_cast<float>(to[at]));
          to[at] = T(static_cast<float>(value));
        }
      });
}

// Returns the factor of the Gram matrix A where it is formed: if it is not squared it needs no further factor.
inline float gram_factor(const NewtonSchulzStep& step) { return step.c == 0 ? static_cast<float>(step.b) : 1.0f; }

// Returns a I + b A + c A^2 from gram_factor A, in one of the two matrices given. With a on the diagonal the last
// product of a step needs no X added to it.
template <class T, class Space>
static Matrix<T, Space> step_polynomial(const Space& exec, Gemm<Space>& gemm, const NewtonSchulzStep& step,
                                        Matrix<T, Space> gram, Matrix<T, Space> square) {
  const float a = static_cast<float>(step.a), b = static_cast<float>(step.b), c = static_cast<float>(step.c);
  if (c == 0) {
    add_to_diagonal(exec, a, gram);
    return gram;
  }
  copy_gram<T>(exec, gram, square);
  gemm.template symmetric<T, T>(Op::none, c, gram, b, square);
  add_to_diagonal(exec, a, square);
  return square;
}

}  // namespace sestina
