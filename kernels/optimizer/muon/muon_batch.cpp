#include "kernels/optimizer/muon/muon_batch.hpp"

#include <utility>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

// Elements of a piece: as a chunk of sums, by which matrices number theirs.
constexpr std::size_t batch_piece = reduce_chunk;

// Writes elements [begin, begin + count) of M and returns the sum of squares of u.
KOKKOS_INLINE_FUNCTION double advance_elements(const MomentumStep& s, const BatchedMatrix& of, std::size_t begin,
                                               std::size_t count) {
  const float* const g = of.gradient + begin;
  float* const m = of.momentum + begin;
  for (std::size_t i = 0; i < count; ++i) m[i] = s.keep * m[i] + s.gain * g[i];
  return lane_sum(count, [=](std::size_t i) { return square(s.p * g[i] + s.q * m[i]); });
}

// Sets inverse(i) to the factor by which u of matrix i is multiplied: the sums of sum_all, one for each.
template <class Space>
void inverse_norms(const Space& exec, const NewtonSchulz& ns, const MuonBatch<Space>& batch,
                   Vector<const double, Space> squares, Vector<float, Space> inverse) {
  const double eps = ns.eps;
  const bool add = ns.norm == NewtonSchulzNorm::add;
  total_entries<1, Space, BatchedMatrix>(
      "ns_norms", exec, batch.table, {squares.data()}, KOKKOS_LAMBDA(const BatchedMatrix& of) { return of.chunks(); },
      KOKKOS_LAMBDA(std::size_t i, const Kokkos::Array<double, 1>& total) {
        inverse(i) = inverse_norm(total[0], eps, add);
      });
}

// Sets X of every matrix to u divided by its norm, rounded, in wide form.
template <class T, class Space>
void normalize_batch(const Space& exec, const MomentumStep& step, const MuonBatch<Space>& batch,
                     Vector<const float, Space> inverse, Vector<T, Space> x) {
  const float p = step.p, q = step.q;
  T* const wide = x.data();
  for_pieces<batch_piece, Space, BatchedMatrix>(
      "ns_normalize", exec, batch.table, batch.sizes.chunks,
      KOKKOS_LAMBDA(const BatchedMatrix& of, std::size_t at, std::size_t count) {
        for (std::size_t e = at; e < at + count; ++e)
          scaled_blend(1, inverse(of.number), p, of.gradient + e, q, of.momentum + e,
                       wide + of.wide + wide_place(of, e));
      });
}

// Sets factors(i) to what gives X of matrix i, already times inverse(i), the norm ||X X^T||^(1/2) of 1:
// gram_norm_factor of its Gram matrix, which lies in the memory of the stacks of X that is free.
template <class T, class Space>
void gram_norm_factors(const Space& exec, const NewtonSchulz& ns, const MuonBatch<Space>& batch,
                       Vector<const T, Space> grams, const MuonBatchScratch<T, Space>& scratch) {
  const double eps = ns.eps;
  const bool add = ns.norm == NewtonSchulzNorm::add;
  const T* const from = grams.data();
  const Vector<float, Space> inverse = scratch.inverse, factors = scratch.factors;
  sum_table_pieces<batch_piece, Space, BatchedPolynomial>(
      "ns_gram_squares", exec, batch.polynomials, scratch.gram_squares,
      KOKKOS_LAMBDA(const BatchedPolynomial& of, std::size_t at, std::size_t count) {
        const T* const a = from + of.gram + at;
        return lane_sum(count, [=](std::size_t i) { return square(a[i]); });
      });
  total_entries<1, Space, BatchedPolynomial>(
      "ns_gram_norms", exec, batch.polynomials, {scratch.gram_squares.data()},
      KOKKOS_LAMBDA(const BatchedPolynomial& of) { return of.pieces(); },
      KOKKOS_LAMBDA(std::size_t i, const Kokkos::Array<double, 1>& total) {
        factors(i) = norm_factor(total[0], eps * static_cast<double>(inverse(i)), add);
      });
}

// Sets P = f a I + f^3 b A of every matrix with its factor f, and, where a step squares A, A = f^(5/2) A.
template <class T, class Space>
void form_first_polynomials(const Space& exec, const NewtonSchulzStep& step, const MuonBatch<Space>& batch,
                            Vector<const float, Space> factors, Vector<T, Space> grams, Vector<T, Space> polynomials) {
  const double a = step.a, b = step.b;
  const bool squared = step.c != 0;
  T *const gram = grams.data(), *const to = polynomials.data();
  for_pieces<batch_piece, Space, BatchedPolynomial>(
      "ns_polynomial", exec, batch.polynomials, batch.sizes.gram_chunks,
      KOKKOS_LAMBDA(const BatchedPolynomial& of, std::size_t at, std::size_t count) {
        const auto f = static_cast<double>(factors(of.number));
        const double linear = b * f * f * f, half = f * f * Kokkos::sqrt(f);
        for (std::size_t e = at; e < at + count; ++e) {
          const bool diagonal = static_cast<std::uint32_t>(e) % (of.side + 1) == 0;
          const auto value = static_cast<double>(static_cast<float>(gram[of.gram + e]));
          to[of.polynomial + e] = T(static_cast<float>(linear * value + (diagonal ? a * f : 0.0)));
          if (squared) gram[of.gram + e] = T(static_cast<float>(half * value));
        }
      });
}

// Sets P = a I + b A of every matrix; A lies in the memory of the stacks of X that is free.
template <class T, class Space>
void form_polynomials(const Space& exec, const NewtonSchulzStep& step, const MuonBatch<Space>& batch,
                      Vector<const T, Space> grams, Vector<T, Space> polynomials) {
  const float a = static_cast<float>(step.a), b = static_cast<float>(step.b);
  const T* const from = grams.data();
  T* const to = polynomials.data();
  for_pieces<batch_piece, Space, BatchedPolynomial>(
      "ns_polynomial", exec, batch.polynomials, batch.sizes.gram_chunks,
      KOKKOS_LAMBDA(const BatchedPolynomial& of, std::size_t at, std::size_t count) {
        for (std::size_t e = at; e < at + count; ++e) {
          const bool diagonal = static_cast<std::uint32_t>(e) % (of.side + 1) == 0;
          const float value = b * static_cast<float>(from[of.gram + e]);
          to[of.polynomial + e] = T(diagonal ? value + a : value);
        }
      });
}

// Returns a matrix (m, n) whose rows are wide_row(n) apart.
template <class T, class Space>
Matrix<T, Space> wide_matrix(T* data, std::size_t m, std::size_t n) {
  return Kokkos::subview(Matrix<T, Space>(data, m, wide_row(n)), Kokkos::ALL,
                         std::pair<std::size_t, std::size_t>(0, n));
}

// The operands of the products of one stack; A and Y are two matrices in one place.
template <class T, class Space>
struct StackOperands {
  Matrix<T, Space> x, gram, y, polynomial;
  StackOperands(const MatrixStack& s, Vector<T, Space> from, Vector<T, Space> to, Vector<T, Space> polynomials)
      : x(wide_matrix<T, Space>(from.data() + s.wide, s.short_side, s.long_side)),
        gram(to.data() + s.wide, s.short_side, s.short_side),
        y(wide_matrix<T, Space>(to.data() + s.wide, s.short_side, s.long_side)),
        polynomial(polynomials.data() + s.polynomial, s.short_side, s.short_side) {}
};

}  // namespace

template <class Space>
MuonBatch<Space> make_muon_batch(std::vector<BatchedMatrix> matrices, bool with_lines) {
  MuonBatch<Space> batch;
  std::vector<BatchedPolynomial> polynomials;
  std::vector<BatchedLines> lines;
  BatchSizes& all = batch.sizes;
  for (BatchedMatrix& matrix : matrices) {
    const std::size_t s = std::min(matrix.rows, matrix.cols), l = std::max(matrix.rows, matrix.cols);
    SESTINA_REQUIRE(s > 0 && s * l < (std::size_t{1} << 31), "a matrix {} x {} in a batch", matrix.rows, matrix.cols);
    const BatchSizes own = BatchSizes::of_one(s, l);
    matrix.elements = s * l;
    matrix.first = all.chunks;
    matrix.number = all.matrices;
    matrix.wide = all.wide;
    matrix.line = all.lines;
    if (batch.stacks.empty() || batch.stacks.back().short_side != s || batch.stacks.back().long_side != l)
      batch.stacks.push_back({0, s, l, all.wide, all.polynomials, own.wide, own.polynomials});
    ++batch.stacks.back().count;
    polynomials.push_back(
        {all.gram_chunks, s * s, matrix.number, static_cast<std::uint32_t>(s), matrix.wide, all.polynomials});
    lines.push_back({batch.line_pieces, l, matrix});
    batch.line_pieces += (l + line_piece - 1) / line_piece;
    all = {all.wide + own.wide,   all.polynomials + own.polynomials, all.chunks + own.chunks,
           all.lines + own.lines, all.gram_chunks + own.gram_chunks, all.matrices + 1};
  }
  batch.table = table_in_space<Space>("sestina::batched_matrices", matrices);
  batch.polynomials = table_in_space<Space>("sestina::batched_polynomials", polynomials);
  if (with_lines) batch.lines = table_in_space<Space>("sestina::batched_lines", lines);
  batch.matrices = std::move(matrices);
  return batch;
}

template <class Space>
void advance_momenta(const Space& exec, const MomentumStep& step, const MuonBatch<Space>& batch,
                     Vector<double, Space> squares) {
  if (batch.matrices.empty()) return;
  sum_table_pieces<reduce_chunk, Space, BatchedMatrix>(
      "momenta", exec, batch.table, squares, KOKKOS_LAMBDA(const BatchedMatrix& of, std::size_t at, std::size_t count) {
        return advance_elements(step, of, at, count);
      });
}

template <class T, class Space>
Vector<const T, Space> batched_newton_schulz(const Space& exec, Gemm<Space>& gemm, const NewtonSchulz& ns,
                                             const MomentumStep& momentum, const MuonBatch<Space>& batch,
                                             const MuonBatchScratch<T, Space>& scratch) {
  Vector<T, Space> x = scratch.x, y = scratch.y;
  if (batch.matrices.empty()) return x;
  inverse_norms<Space>(exec, ns, batch, scratch.squares, scratch.inverse);
  normalize_batch<T, Space>(exec, momentum, batch, scratch.inverse, x);
  for (const NewtonSchulzStep& step : ns.steps) {
    const auto each_stack = [&](const auto& product) {
      for (const MatrixStack& stack : batch.stacks)
        product(stack, StackOperands<T, Space>(stack, x, y, scratch.polynomials));
    };
    each_stack([&](const MatrixStack& s, const StackOperands<T, Space>& on) {
      gemm.template batch<T, T>(s.count, {s.wide_apart, s.wide_apart, s.wide_apart}, Op::none, Op::transpose, 1, on.x,
                                on.x, 0, on.gram);
    });
    if (ns.gram_norm && &step == ns.steps.data()) {
      gram_norm_factors<T, Space>(exec, ns, batch, y, scratch);
      form_first_polynomials<T, Space>(exec, step, batch, scratch.factors, y, scratch.polynomials);
    } else {
      form_polynomials<T, Space>(exec, step, batch, y, scratch.polynomials);
    }
    each_stack([&](const MatrixStack& s, const StackOperands<T, Space>& on) {
      if (step.c != 0)
        gemm.template batch<T, T>(s.count, {s.wide_apart, s.wide_apart, s.polynomial_apart}, Op::none, Op::transpose,
                                  static_cast<float>(step.c), on.gram, on.gram, 1, on.polynomial);
      gemm.template batch<T, T>(s.count, {s.polynomial_apart, s.wide_apart, s.wide_apart}, Op::none, Op::none, 1,
                                on.polynomial, on.x, 0, on.y);
    });
    std::swap(x, y);
  }
  return x;
}

template <class T, class Space>
void move_batch(const Space& exec, const WeightMove& move, const MuonBatch<Space>& batch,
                Vector<const T, Space> directions) {
  move_batch_along<T, Space>(
      exec, move, batch, directions, KOKKOS_LAMBDA(const BatchedMatrix&, std::size_t, float o) { return o; });
}

#define SESTINA_MUON_BATCH(Space, T)                                                                               \
  template Vector<const T, Space> batched_newton_schulz<T, Space>(const Space&, Gemm<Space>&, const NewtonSchulz&, \
                                                                  const MomentumStep&, const MuonBatch<Space>&,    \
                                                                  const MuonBatchScratch<T, Space>&);              \
  template void move_batch<T, Space>(const Space&, const WeightMove&, const MuonBatch<Space>&, Vector<const T, Space>);
#define SESTINA_MUON_BATCHES(Space)                                                                \
  template MuonBatch<Space> make_muon_batch<Space>(std::vector<BatchedMatrix>, bool);              \
  template void advance_momenta<Space>(const Space&, const MomentumStep&, const MuonBatch<Space>&, \
                                       Vector<double, Space>);                                     \
  SESTINA_MUON_BATCH(Space, float)                                                                 \
  SESTINA_MUON_BATCH(Space, bf16)
SESTINA_INSTANTIATE_LANES(SESTINA_MUON_BATCHES)

}  // namespace sestina
