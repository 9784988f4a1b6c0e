// Element-wise passes of matrix optimizers over many matrices, each pass in one launch that a table names its matrices
// for (kernels/blas/table_passes.hpp): on a device one small matrix after another would be little work for many
// launches. Their products are those of Gemm::batch (core/optimizer/base/update_batches.hpp says who is updated in this
// way). The bits are those of the passes over one matrix. Nothing fences.
#pragma once
#include <vector>

#include "kernels/blas/host_values.hpp"
#include "kernels/blas/table_passes.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {

// One matrix of a batch, or a block of one: what its owner says of it, and its place, which make_flat_batch fills in.
struct FlatMatrix {
  const float* gradient = nullptr;  // of the first element, as the next ones; all have rows of the same distance
  float *momentum = nullptr, *second_moment = nullptr, *master = nullptr;
  bf16* weight = nullptr;             // null: none is written
  double lr = 0, weight_decay = 0;    // factors of its own, see WeightMove
  std::uint32_t rows = 0, cols = 0;   // both at least 1
  std::size_t apart = 0;              // elements from one row to the next; cols: the rows have no padding
  std::size_t stack = 0;              // number of the stack in which its direction ends
  std::size_t elements = 0;           // rows * cols
  std::size_t first = 0, number = 0;  // number of its first piece, and its own
  std::size_t place = 0;              // elements before it in each stack
  std::size_t line = 0;               // lines before its own, which are its rows and then its columns

  // Returns the place of element e of the matrix in the arrays of its owner.
  KOKKOS_INLINE_FUNCTION std::size_t at(std::size_t e) const {
    const auto narrow = static_cast<std::uint32_t>(e);
    return apart == cols ? e : narrow / cols * apart + narrow % cols;
  }
  // Returns its pieces among those of all matrices: chunks of sums.
  KOKKOS_INLINE_FUNCTION EntryRange pieces() const { return {first, chunk_count(elements)}; }
};

// Calls body(from, to, count) for the elements at, ..., at + count of a matrix, in runs that lie together: `from`
// is the place of such elements in the arrays of its owner, `to` in a stack.
template <class Body>
KOKKOS_INLINE_FUNCTION void for_runs_of(const FlatMatrix& of, std::size_t at, std::size_t count, const Body& body) {
  for (std::size_t e = at, end = at + count; e < end;) {
    const std::size_t left = of.apart == of.cols ? end - e : Kokkos::min<std::size_t>(end - e, of.cols - e % of.cols);
    body(of.at(e), of.place + e, left);
    e += left;
  }
}

// Returns the block (rows, cols) of a matrix whose first element is (row, col).
inline FlatMatrix block_of(FlatMatrix of, std::size_t row, std::size_t col, std::size_t rows, std::size_t cols) {
  const std::size_t begin = row * of.apart + col;
  const auto move = [begin](auto*& x) { x = x == nullptr ? nullptr : x + begin; };
  move(of.gradient);
  move(of.momentum);
  move(of.second_moment);
  move(of.master);
  move(of.weight);
  of.rows = static_cast<std::uint32_t>(rows);
  of.cols = static_cast<std::uint32_t>(cols);
  return of;
}

// Stacks of numbers, each with all matrices one after another, without padding; each matrix begins at a multiple of 256
// bytes, as the workspace's pieces do, so that the memory of several matrices is the sum of what each takes by itself.
struct FlatStacks {
  static constexpr std::size_t aligned(std::size_t n) { return (n + 63) / 64 * 64; }
  float* values = nullptr;
  std::size_t each = 0;  // elements of a stack
  KOKKOS_INLINE_FUNCTION float* operator[](std::size_t stack) const { return values + stack * each; }
};
// Takes so many stacks of matrices that have so many elements in all, each count aligned.
template <class Space>
struct FlatScratch {
  FlatScratch(Workspace<Space>& workspace, std::size_t count, std::size_t elements)
      : stacks{workspace.template take<float>(count * elements).data(), elements} {}
  FlatStacks stacks;
};

template <class Space>
struct FlatBatch {
  std::vector<FlatMatrix> matrices;
  std::size_t elements = 0, pieces = 0;  // elements of a stack
  std::size_t lines = 0;                 // of all matrices, each with a multiple of 64
  Kokkos::View<FlatMatrix*, typename Space::memory_space> table;
};
inline constexpr std::size_t flat_piece = reduce_chunk;  // elements of a piece

// Makes the table of a batch. Fences.
template <class Space>
FlatBatch<Space> make_flat_batch(std::vector<FlatMatrix>);

// Calls body(matrix, at, count) for the elements of all matrices, in one launch (for_pieces). The label has at most 15
// characters.
template <class Space, class Body>
static void for_flat_pieces(const char* label, const Space& exec, const FlatBatch<Space>& batch, const Body& body) {
  if (batch.matrices.empty()) return;
  for_pieces<flat_piece, Space, FlatMatrix>(label, exec, batch.table, batch.pieces, body);
}

// average_momentum of every matrix; none may be a block.
template <class Space>
void average_momenta(const Space&, double beta1, double scale, const FlatBatch<Space>&);
// move_weight of every matrix along its direction, times the factor of the matrix where there are some; lr and
// weight_decay of the move are factors of the matrices' own.
template <class Space>
void move_weights(const Space&, const WeightMove&, const FlatBatch<Space>&, const FlatStacks&,
                  Vector<const double, Space> factors = {});

}  // namespace sestina
