// Muon's update of many matrices in few launches, for a device. Each pass is one launch for all matrices of a batch,
// which a table names; a product is one call for all of one shape, whose operands lie one after another in the
// workspace: a stack. A matrix on its own would take seven launches and products for each step of Newton-Schulz alone,
// far more time of the host than of a device (core/optimizer/base/update_batches.hpp says who is updated in this way).
//
// A step of the iteration takes as few passes as there are products. For X (s, l) in wide form:
//   A = X X^T       a whole product: what symmetric tiles save of one with s < 8192, a device loses by their number
//   P = a I + b A   the only pass that is no product, for the stacks of all shapes
//   P += c A A^T    none in a cubic step
//   Y = P X         and X and Y change places
// A has the memory of Y, which is written last. Newton-Schulz of one matrix (newton_schulz.hpp) does the same sums, but
// rounds a I + b A with the rest of P; in bf16 both differ by a rounding of P. Momentum and norm have the same bits.
// Where the norm is that of the Gram matrix, the first step is that of f X: P = f a I + f^3 b A takes f in, and A
// becomes f^(5/2) A before it is multiplied by itself, so that a call of the library still serves all of one shape.
#pragma once
#include <algorithm>
#include <vector>

#include "kernels/blas/gemm.hpp"
#include "kernels/blas/host_values.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/blas/table_passes.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/newton_schulz.hpp"

namespace sestina {

// From this side on Gram matrices are worth the tiles of Gemm::symmetric, and a matrix keeps a device busy by itself.
inline constexpr std::size_t unbatched_side = 8192;

// Returns whether matrices are iterated in batches: those of a plain iteration, with nothing done to the rows before or
// to the norm after it.
inline bool is_batched(const NewtonSchulz& ns, std::size_t rows, std::size_t cols) {
  const std::size_t s = std::min(rows, cols), l = std::max(rows, cols);
  return s > 0 && s < unbatched_side && l < (std::size_t{1} << 31) / s && !takes_gram_form(ns, s, l) &&
         !ns.equal_rows && !ns.snap;
}

// Returns the elements from one row to the next of a wide form with rows of `length`: they begin at multiples of 16
// bytes, which the fast products of a device want.
KOKKOS_INLINE_FUNCTION constexpr std::size_t wide_row(std::size_t length) { return (length + 7) / 8 * 8; }

// One matrix of a batch: what its owner says of it, and its place, which make_muon_batch fills in.
struct BatchedMatrix {
  const float* gradient = nullptr;  // (rows, cols) without padding, as momentum, master and weight
  float *momentum = nullptr, *master = nullptr;
  float* second_moment = nullptr;              // of NorMuon and AdaMuon (moment_batch.hpp)
  bf16* weight = nullptr;                      // null: none is written
  std::uint32_t rows = 0, cols = 0;            // both at least 1
  double lr = 0, weight_decay = 0, scale = 1;  // factors of its own, see WeightMove
  std::size_t first = 0;                       // number of its first chunk in the batch
  std::size_t elements = 0;
  std::size_t number = 0;  // in the batch
  std::size_t wide = 0;    // elements before its X in the stacks of X
  std::size_t line = 0;    // lines before its first one: a matrix has long_side() of them

  KOKKOS_INLINE_FUNCTION std::size_t short_side() const { return Kokkos::min(rows, cols); }
  KOKKOS_INLINE_FUNCTION std::size_t long_side() const { return Kokkos::max(rows, cols); }
  // Its numbers among the chunks and lines of all matrices.
  KOKKOS_INLINE_FUNCTION EntryRange chunks() const { return {first, chunk_count(elements)}; }
  KOKKOS_INLINE_FUNCTION EntryRange lines() const { return {line, long_side()}; }
};

// Returns the place in wide form of element e of a matrix. Divisions of 32 bits take a fraction of those of 64.
KOKKOS_INLINE_FUNCTION std::size_t wide_place(const BatchedMatrix& of, std::size_t e) {
  const std::size_t row = wide_row(of.long_side());
  if (of.rows <= of.cols && row == of.cols) return e;
  const auto at = static_cast<std::uint32_t>(e);
  const std::uint32_t i = at / of.cols, j = at % of.cols;
  return of.rows <= of.cols ? i * row + j : j * row + i;
}

// The lines of a matrix, in pieces of line_piece as numbered by `first`.
inline constexpr std::size_t line_piece = 64;
struct BatchedLines {
  std::size_t first = 0, elements = 0;
  BatchedMatrix of;
};

// Of one matrix the polynomial of a step, in pieces as numbered by `first`, which are chunks of sums.
struct BatchedPolynomial {
  std::size_t first = 0, elements = 0;  // side^2
  std::size_t number = 0;               // of the matrix
  std::uint32_t side = 0;
  std::size_t gram = 0, polynomial = 0;  // elements before it in the stacks of X, of P

  KOKKOS_INLINE_FUNCTION EntryRange pieces() const { return {first, chunk_count(elements)}; }
};

// Matrices of one wide form (short_side, long_side), one after another; their rows are wide_row(long_side) apart.
struct MatrixStack {
  std::size_t count = 0, short_side = 0, long_side = 0;
  std::size_t wide = 0, polynomial = 0;              // elements before the first one in the stacks of X, of P
  std::size_t wide_apart = 0, polynomial_apart = 0;  // elements from one to the next
};

// Numbers of a batch, by which its memory is taken. Those of several matrices add up: each begins at a multiple of 256
// bytes in bf16, as the workspace's pieces do.
struct BatchSizes {
  static constexpr std::size_t step = 128;
  static constexpr std::size_t aligned(std::size_t n) { return (n + step - 1) / step * step; }
  static BatchSizes of_one(std::size_t rows, std::size_t cols) {
    const std::size_t s = std::min(rows, cols), l = std::max(rows, cols);
    return {aligned(s * wide_row(l)), aligned(s * s), chunk_count(s * l), l, chunk_count(s * s), 1};
  }
  std::size_t wide = 0, polynomials = 0, chunks = 0, lines = 0, gram_chunks = 0, matrices = 0;
};

template <class Space>
struct MuonBatch {
  std::vector<BatchedMatrix> matrices;
  std::vector<MatrixStack> stacks;
  BatchSizes sizes;
  std::size_t line_pieces = 0;
  Kokkos::View<BatchedMatrix*, typename Space::memory_space> table;
  Kokkos::View<BatchedLines*, typename Space::memory_space> lines;
  Kokkos::View<BatchedPolynomial*, typename Space::memory_space> polynomials;
};

// Memory of an update: of a batch at most the sum over its matrices of what each takes as a batch by itself.
template <class T, class Space>
struct MuonBatchScratch {
  MuonBatchScratch(Workspace<Space>& workspace, const NewtonSchulz& ns, const BatchSizes& n)
      : x(workspace.template take<T>(n.wide)),
        y(workspace.template take<T>(n.wide)),
        polynomials(workspace.template take<T>(n.polynomials)),
        squares(workspace.template take<double>(n.chunks)),
        gram_squares(workspace.template take<double>(ns.gram_norm ? n.gram_chunks : 0)),
        inverse(workspace.template take<float>(n.matrices)),
        factors(workspace.template take<float>(ns.gram_norm ? n.matrices : 0)) {}
  Vector<T, Space> x, y, polynomials;
  Vector<double, Space> squares, gram_squares;  // of u, and of Gram matrices, by chunks of all matrices
  Vector<float, Space> inverse, factors;        // of the norm of each, and from that to the norm of its Gram matrix
};

// Makes the tables of a batch, with that of lines where they have moments; matrices of one wide form that follow one
// another are one stack. Fences.
template <class Space>
MuonBatch<Space> make_muon_batch(std::vector<BatchedMatrix>, bool with_lines = false);

// Advances the momenta of all matrices and sums the squares of u by chunks (MomentumStep). Does not fence.
template <class Space>
void advance_momenta(const Space&, const MomentumStep&, const MuonBatch<Space>&, Vector<double, Space> squares);

// Orthogonalises u = p G + q M (MomentumStep) of every matrix, whose squares are in the scratch. Returns the stacks of
// the results in wide form, in the scratch. Does not fence.
template <class T, class Space>
Vector<const T, Space> batched_newton_schulz(const Space&, Gemm<Space>&, const NewtonSchulz&, const MomentumStep&,
                                             const MuonBatch<Space>&, const MuonBatchScratch<T, Space>&);

// Moves all matrices along direction(matrix, e, o), of element e of O, as move_weight_wide does one; lr, weight_decay
// and scale of `move` are factors of the matrices' own, and decay comes first. No fence.
template <class T, class Space, class Direction>
static void move_batch_along(const Space& exec, const WeightMove& move, const MuonBatch<Space>& batch,
                             Vector<const T, Space> directions, const Direction& direction) {
  SESTINA_REQUIRE(move.decay_first, "a batch of matrices decays first");
  const double lr = move.lr, decay = move.weight_decay, scale = move.scale;
  double* const nonfinite = move.nonfinite;
  const T* const wide = directions.data();
  if (batch.matrices.empty()) return;
  for_pieces<reduce_chunk, Space, BatchedMatrix>(
      "muon_move", exec, batch.table, batch.sizes.chunks,
      KOKKOS_LAMBDA(const BatchedMatrix& of, std::size_t at, std::size_t count) {
        const double rate = lr * of.lr;
        const auto keep = static_cast<float>(1 - rate * (decay * of.weight_decay));
        const auto length = static_cast<float>(rate * (scale * of.scale));
        const T* const o = wide + of.wide;
        for (std::size_t e = at; e < at + count; ++e) {
          of.master[e] = keep * of.master[e] - length * direction(of, e, static_cast<float>(o[wide_place(of, e)]));
          if (of.weight != nullptr) of.weight[e] = bf16(of.master[e]);
        }
        flag_nonfinite(count, of.master + at, nonfinite);
      });
}
// Moves them along O as it is.
template <class T, class Space>
void move_batch(const Space&, const WeightMove& move, const MuonBatch<Space>&, Vector<const T, Space> directions);

}  // namespace sestina
